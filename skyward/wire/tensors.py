"""Pickling of the memory of PyTorch tensors, without copies and independent of the devices on the other side.

A tensor pickles itself as a view of a storage, which is memory on a device. By default torch writes a storage in its
own file format, which takes several copies, and that of a GPU cannot be read without a GPU. Here a storage is a plain
buffer of protocol 5; it is loaded to its device if that exists, else to main memory. Storages shared by tensors are
sent once and are shared afterwards.
"""

from __future__ import annotations

import ctypes
import pickle
from importlib import import_module
from typing import Any

_TORCH = "torch"  # imported by name, and only for a tensor: code on nodes must not depend on it
_KINDS = frozenset({"TypedStorage", "UntypedStorage"})  # tensors of newer dtypes have untyped storages
_MAIN_MEMORY = "cpu"


def is_storage(kind: type) -> bool:
    """Return whether objects of this type are the memory of tensors."""
    return kind.__name__ in _KINDS and kind.__module__ == "torch.storage"


def reduce(storage: Any) -> Any:
    """Return how a storage is pickled. The buffer is the tensor's memory if that is main memory, else a copy of it."""
    torch = import_module(_TORCH)
    if isinstance(storage, torch.storage.TypedStorage):  # created for each tensor; the wrapped storage is shared
        return _typed, (storage._untyped_storage, storage.dtype)
    if storage.device.type == "meta":  # it has no memory
        return NotImplemented
    return _untyped, (torch.serialization.location_tag(storage), pickle.PickleBuffer(memory(storage.cpu())))


def memory(storage: Any) -> Any:
    """Return a view of the bytes of an untyped storage in main memory, which keeps the storage alive."""
    view = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr() or 1)
    view.storage = storage
    return view


def content(storage: Any) -> bytes:
    """Return the bytes of a storage on any device; equal for storages with equal content."""
    plain = getattr(storage, "_untyped_storage", storage)  # the public attribute warns that storages will be removed
    return bytes(memory(plain.cpu()))


def _typed(storage: Any, dtype: Any) -> Any:
    plain = storage._untyped_storage
    return import_module(_TORCH).storage.TypedStorage(wrap_storage=plain, dtype=dtype, _internal=True)


def _untyped(location: str, buffer: Any) -> Any:
    """Return the storage for this buffer, on its GPU if that exists. Tensors are writable, so the buffer must be.

    It is returned as a typed storage of bytes, since torch unwraps its argument (`torch._utils._rebuild_tensor_v3`).
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
        return storage  # left in main memory
    return torch.serialization.default_restore_location(storage, location)
