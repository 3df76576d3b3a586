"""The memory of PyTorch's tensors in a pickle: it arrives also on a machine that lacks the device it was on.

A tensor pickles itself with its device, and one of a GPU cannot be unpickled where there is none. Here the storages
below the tensors are pickled so that they land on their device where it exists and in main memory where it does not.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

_TORCH = "torch"  # imported by name, and only when a tensor is met: what runs on nodes does without it


def is_storage(kind: type) -> bool:
    """Whether objects of this type are the memory of tensors."""
    return kind.__name__ == "TypedStorage" and kind.__module__ == "torch.storage"


def reduce(storage: Any) -> tuple[Any, tuple[bytes]]:
    """How a storage is pickled: as torch does it, to be loaded by `load`."""
    file = io.BytesIO()
    import_module(_TORCH).save(storage, file, _use_new_zipfile_serialization=False)
    return load, (file.getvalue(),)


def content(storage: Any) -> bytes:
    """The bytes of a storage, whatever device it is on; the same for storages that hold the same."""
    torch = import_module(_TORCH)
    plain = storage._untyped_storage  # the public way to it warns that storages will be removed
    flat = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(plain)
    return bytes(memoryview(flat.cpu().numpy()))


def load(data: bytes) -> Any:
    """The storage, on its device or, where that does not exist, in main memory."""
    return import_module(_TORCH).load(io.BytesIO(data), map_location=_placed, weights_only=False)


def _placed(storage: Any, location: str) -> Any:
    torch = import_module(_TORCH)
    kind, _, index = location.partition(":")
    devices: Any = getattr(torch, kind, None)  # torch.cuda and the like
    if hasattr(devices, "device_count") and int(index or 0) >= devices.device_count():
        return storage  # where it was read into: main memory
    return torch.serialization.default_restore_location(storage, location)
