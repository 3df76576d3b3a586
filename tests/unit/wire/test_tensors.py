"""Tensors and modules of PyTorch as arguments and results: whole, shared as they were, on a device that exists."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from skyward.wire import payload

torch = pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")

ELSEWHERE = "cuda:7"  # a device that the machine of these tests does not have


def there_and_back(value: Any) -> Any:
    data, buffers = payload.dumps(value)
    return payload.loads(data, [bytearray(b) for b in buffers])


@pytest.fixture
def on_a_gpu_elsewhere() -> Iterator[list[Any]]:
    """Storages that are put in the list are pickled as if they were on a GPU that this machine lacks."""
    pretended: list[Any] = []

    def tag(storage: Any) -> str | None:
        return ELSEWHERE if any(storage.data_ptr() == each.data_ptr() for each in pretended) else None

    registry = torch.serialization._package_registry
    before = list(registry)
    torch.serialization.register_package(0, tag, lambda _storage, _location: None)
    yield pretended
    registry[:] = before


def test_a_module_comes_back_with_its_parameters_and_buffers() -> None:
    """Values, names, what is trained and what is not, and the running statistics are the same."""
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    model[0].bias.requires_grad_(False)
    model(torch.randn(8, 300))

    back = there_and_back(model)

    assert type(back) is type(model)
    expected = model.state_dict()
    assert list(back.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in back.state_dict().items())
    assert [p.requires_grad for p in back.parameters()] == [True, False, True, True]
    back[0].weight.data.add_(1)  # its memory is its own, and writable
    assert not torch.equal(back[0].weight, model[0].weight)


def test_tied_parameters_stay_tied() -> None:
    """A parameter that two layers share is one parameter afterwards."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight

    back = there_and_back(torch.nn.ModuleList([first, second]))

    assert back[0].weight is back[1].weight


def test_what_was_on_a_gpu_arrives_where_there_is_none(on_a_gpu_elsewhere: list[Any]) -> None:
    """A tensor of a device that is missing here lands in main memory; torch's own pickling refuses it."""
    model = torch.nn.Linear(3, 2)
    on_a_gpu_elsewhere += [p.untyped_storage() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        pickle.loads(pickle.dumps(model))

    back = there_and_back({"model": model, "text": "beside it"})["model"]

    assert {p.device.type for p in back.parameters()} == {"cpu"}
    assert torch.equal(back.weight, model.weight)


def test_odd_tensors_come_back(on_a_gpu_elsewhere: list[Any]) -> None:
    """A view, a sparse and an empty tensor; two views of one memory that was on a GPU."""
    base = torch.arange(12.0)
    on_a_gpu_elsewhere.append(base.untyped_storage())

    view, other, sparse, empty = there_and_back(
        (base.reshape(3, 4).t()[1:], base[3:], torch.eye(3).to_sparse(), torch.empty(0, 5))
    )

    assert torch.equal(view, base.reshape(3, 4).t()[1:])
    assert torch.equal(other, base[3:])
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert empty.shape == (0, 5)


def test_torch_is_not_loaded_where_no_tensor_crosses() -> None:
    """What has nothing to do with torch is pickled without it."""
    code = "import sys; from skyward.wire import payload; payload.dumps({1: object}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
