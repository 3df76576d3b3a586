"""Tensors and modules of PyTorch as arguments and results: whole, shared as they were, on a device that exists."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from skyward.wire import payload

torch = pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")

ELSEWHERE = "cuda:7"  # a device that the machine of these tests does not have


class Marked(torch.Tensor):  # type: ignore[name-defined, misc]
    """A kind of tensor of its own."""


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


def test_the_memory_of_a_tensor_travels_beside_the_pickle() -> None:
    """No copy is made of it: the buffer is the tensor's memory, and what arrives uses the received buffer."""
    tensor = torch.arange(100_000, dtype=torch.float64)
    data, (buffer,) = payload.dumps({"weights": tensor})
    received = bytearray(buffer)

    back = payload.loads(data, [received])["weights"]

    assert len(data) < 1000
    tensor[0] = 7
    assert memoryview(buffer).cast("B").cast("d")[0] == 7
    received[:8] = struct.pack("d", 9)
    assert back[0] == 9
    assert back[1:].equal(tensor[1:])


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int16", "uint16", "uint64", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128"],
)
@pytest.mark.parametrize("length", [0, 6, 60_000])
def test_each_dtype_comes_back(dtype: str, length: int) -> None:
    """Also those that torch keeps in untyped memory, small or large."""
    tensor = torch.arange(length).remainder(2).to(getattr(torch, dtype))

    back = there_and_back(tensor)

    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert bytes(back.untyped_storage()) == bytes(tensor.untyped_storage())


def test_views_of_one_memory_stay_views_of_one_memory() -> None:
    """It is sent once; what is written through one is seen through the other, also in their strides."""
    base = torch.arange(40_000.0).reshape(200, 200)
    data, buffers = payload.dumps([base, base.t(), base[10:, ::2]])
    assert sum(view.nbytes for view in buffers) == base.nbytes

    whole, turned, part = payload.loads(data, [bytearray(view) for view in buffers])

    assert (turned.stride(), part.stride()) == ((1, 200), (200, 2))
    assert torch.equal(part, base[10:, ::2])
    whole[10, 2] = -1
    assert turned[2, 10] == part[0, 1] == -1


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse CSR", "ignore:TypedStorage")
def test_what_is_more_than_memory_comes_back() -> None:
    """Gradients wanted or not, lazy conjugates, quantized values, attributes, subclasses, sparse rows."""
    trained = torch.ones(3, requires_grad=True)
    conjugate = torch.tensor([1 + 2j]).conj()
    quantized = torch.quantize_per_tensor(torch.tensor([0.0, 1.0]), 0.5, 1, torch.quint8)
    named = torch.zeros(2)
    named.label = "kept"
    rows = torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse_csr()
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    back = there_and_back((trained, conjugate, quantized, named, Marked([1.0, 2.0]), rows, frozen))

    assert back[0].requires_grad
    assert back[0].grad_fn is None
    assert torch.equal(back[1].resolve_conj(), torch.tensor([1 - 2j]))
    assert torch.equal(back[2].dequantize(), torch.tensor([0.0, 1.0]))
    assert back[3].label == "kept"
    assert type(back[4]) is Marked
    assert torch.equal(back[5].to_dense(), rows.to_dense())
    assert type(back[6]) is torch.nn.Parameter
    assert not back[6].requires_grad
    assert there_and_back(torch.empty(3, device="meta")).device.type == "meta"


def test_tensors_of_read_only_memory_are_writable() -> None:
    """Where the received bytes must not be changed, as those of a file, a tensor has a copy of its own."""
    data, buffers = payload.dumps(torch.zeros(50_000))
    received = [bytes(view) for view in buffers]

    back = payload.loads(data, received)
    back += 1

    assert back.sum() == 50_000
    assert not any(received[0])


def test_torch_is_not_loaded_where_no_tensor_crosses() -> None:
    """What has nothing to do with torch is pickled without it."""
    code = "import sys; from skyward.wire import payload; payload.dumps({1: object}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
