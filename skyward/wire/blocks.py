"""Allocates memory for received buffers: large ones in huge pages that are used again.

Fresh pages cost more than the copy into them: 64 MB took a worker 57 ms of processor time in fresh memory and 25 ms in
memory it had used before. A block is free again when nobody views it any more, which its reference count tells: each
view of it, and each array that uses one, holds a reference.
"""

from __future__ import annotations

import mmap
import sys

from skyward.system import threading

_HUGE = 2 * 1024 * 1024
_KEPT = 128 * 1024 * 1024  # bytes of large blocks that a process remembers, in use or not

_blocks: list[mmap.mmap] = []  # oldest first
_lock = threading.Lock()


def allocate(size: int) -> memoryview:
    """Writable memory of that size, whose content is undefined."""
    if size < _HUGE:
        return memoryview(bytearray(size))
    with _lock:
        for number in range(len(_blocks)):
            # the lock is held until the view is there: nobody else finds the block unused
            if size <= len(_blocks[number]) < 2 * size and sys.getrefcount(_blocks[number]) == _UNUSED:
                return memoryview(_blocks[number])[:size]
    block = _fresh(size)
    view = memoryview(block)
    with _lock:
        _blocks.append(block)
        while sum(map(len, _blocks)) > _KEPT:
            del _blocks[0]  # whoever uses it keeps it
    return view


def _fresh(size: int) -> mmap.mmap:
    # private, because for shared memory, which is Python's default, many systems have huge pages switched off
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    block = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages: slower, not wrong
    return block


def _count_of_unused() -> int:
    """What `getrefcount` says, asked as in `allocate`, of a block that only the list knows."""
    blocks = [mmap.mmap(-1, 4096)]
    return sys.getrefcount(blocks[0])


_UNUSED = _count_of_unused()
