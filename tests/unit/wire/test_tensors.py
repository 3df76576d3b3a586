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


def test_what_was_on_a_gpu_arrives_where_there_is_none(on_a_gpu_elsewhere: list[Any]) -> None:
    """A tensor of a device that is missing here lands in main memory; torch's own pickling refuses it."""
    model = torch.nn.Linear(3, 2)
    on_a_gpu_elsewhere += [p.untyped_storage() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        pickle.loads(pickle.dumps(model))

    back = there_and_back({"model": model, "text": "beside it"})["model"]

    assert {p.device.type for p in back.parameters()} == {"cpu"}
    assert torch.equal(back.weight, model.weight)


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
    assert _memory(back) == _memory(tensor)


def _memory(tensor: Any) -> bytes:
    memory: bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()
    return memory


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
