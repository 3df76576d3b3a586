"""What a failed call leaves behind on a GPU: memory that PyTorch keeps for later, and a context that works no more."""

from __future__ import annotations

import gc
import re
import sys

# after these CUDA answers every call of the process with the same error; others, such as too little memory, pass
_LASTING = re.compile(
    r"(cuda|hip).*(device-side assert|illegal memory access|unspecified launch failure|misaligned address"
    r"|illegal instruction|hardware stack error|invalid program counter|launch timed out|uncorrectable ECC)",
    re.IGNORECASE | re.DOTALL,
)


def is_lasting(error: BaseException | None) -> bool:
    """Whether this error, or one that it followed from, is that of a kernel after which CUDA works no more here."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RuntimeError) and _LASTING.search(str(error)):  # torch.AcceleratorError is one, too
            return True
        error = error.__cause__ or error.__context__
    return False


def give_back() -> bool:
    """Give back the GPU memory that PyTorch keeps for later calls; waits for kernels that run.

    Returns:
        Whether CUDA still works in this process: the error of a kernel that was queued may come out here.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # by its name: nothing here imports it
    try:
        if cuda is None or not cuda.is_initialized():
            return True
        gc.collect()  # tensors of frames that refer to themselves, as those of an exception often do
        cuda.empty_cache()
    except Exception:  # whatever it is, a fresh process is the better place for the next call
        return False
    return True
