"""The memory of PyTorch's tensors in a pickle: beside it and uncopied, and it arrives where its device is missing.

A tensor pickles itself as a view of a storage, which is memory on a device. By itself torch writes a storage in its own
file format, which takes several copies, and one of a GPU cannot be read where there is none. Here a storage is a plain
buffer of protocol 5; it lands on its device where that exists and in main memory where it does not. Storages that
tensors share are sent once and are shared afterwards.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from importlib import import_module
from typing import Any

_TORCH = "torch"  # imported by name, and only when a tensor is met: what runs on nodes does without it
_KINDS = frozenset({"TypedStorage", "UntypedStorage"})  # tensors of newer dtypes refer to their memory as untyped
_MAIN_MEMORY = "cpu"
_NO_MEMORY = "meta"


def is_storage(kind: type) -> bool:
    """Whether objects of this type are the memory of tensors."""
    return kind.__name__ in _KINDS and kind.__module__ == "torch.storage"


def reduce(storage: Any) -> tuple[Any, tuple[Any, ...]]:
    """How a storage is pickled. The buffer is the tensor's own memory if that is main memory, else a copy of it."""
    torch = import_module(_TORCH)
    if isinstance(storage, torch.storage.TypedStorage):  # made anew for each tensor; what it wraps is shared by them
        return _typed, (storage._untyped_storage, storage.dtype)
    if storage.device.type == _NO_MEMORY:
        file = io.BytesIO()
        torch.save(storage, file, _use_new_zipfile_serialization=False)
        return load, (file.getvalue(),)
    return _untyped, (torch.serialization.location_tag(storage), pickle.PickleBuffer(memory(storage.cpu())))


def memory(storage: Any) -> Any:
    """A view of the bytes of an untyped storage in main memory, which stays while somebody looks at it."""
    view = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr() or 1)
    view.storage = storage
    return view


def content(storage: Any) -> bytes:
    """The bytes of a storage, whatever device it is on; the same for storages that hold the same."""
    plain = getattr(storage, "_untyped_storage", storage)  # the public way to it warns that storages will be removed
    return bytes(memory(plain.cpu()))


def load(data: bytes) -> Any:
    """The storage that torch has written, on its device or, where that does not exist, in main memory."""
    return import_module(_TORCH).load(io.BytesIO(data), map_location=_placed, weights_only=False)


def _typed(storage: Any, dtype: Any) -> Any:
    plain = storage._untyped_storage
    return import_module(_TORCH).storage.TypedStorage(wrap_storage=plain, dtype=dtype, _internal=True)


def _untyped(location: str, buffer: Any) -> Any:
    """The storage over this buffer or, of a GPU that exists here, on it. Tensors are writable, so the buffer must be.

    It comes as one of bytes, since torch unwraps what it is given (`torch._utils._rebuild_tensor_v3`).
    """
    torch, view = import_module(_TORCH), memoryview(buffer)
    if not view.nbytes:
        storage = torch.UntypedStorage(0)
    else:
        storage = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8).untyped_storage()
    if location != _MAIN_MEMORY:
        storage = _placed(storage, location)
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)


def _placed(storage: Any, location: str) -> Any:
    torch = import_module(_TORCH)
    kind, _, index = location.partition(":")
    devices: Any = getattr(torch, kind, None)  # torch.cuda and the like
    if hasattr(devices, "device_count") and int(index or 0) >= devices.device_count():
        return storage  # where it was read into: main memory
    return torch.serialization.default_restore_location(storage, location)
