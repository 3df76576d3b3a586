"""The checks of `skyward doctor --gpu`. `python -m skyward.cli.gpu_checks NAME` runs one; its last line is the outcome.

A check returns its figures, raises `NotPossibleError` if the machine lacks what it needs, and fails by any other error.
"""

from __future__ import annotations

import os
import pickle
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from skyward._compute import compute
from skyward._pool.pool import ComputePool
from skyward.cli import gpu_on_node as on_node
from skyward.cli.doctor import FAILED, IMPOSSIBLE, SEEN
from skyward.errors import PluginError, ProviderError, SkywardError, TaskTimeoutError, WorkerLostError
from skyward.model.spec import Accelerator, Worker, model_of
from skyward.nodes.local_host import usable_gpus
from skyward.plugins import torch as torch_plugin
from skyward.providers import Docker, Local
from skyward.runner.config import GPUS_VAR
from skyward.runner.usage import Gpus

CUDA = "cuda"
_SPIN_S = 600.0
_SLACK_BYTES = 64 * 1024**2
_MB = 10**6


class NotPossibleError(Exception):
    """The machine lacks what a check needs."""


def pool(**given: Any) -> ComputePool:
    """Return a pool of processes with a GPU, which prints nothing."""
    return ComputePool(**{"provider": Local(), "accelerator": accelerator(), "display": "quiet", **given})


def accelerator() -> Accelerator:
    """Return the accelerator for the driver's name of the first GPU."""
    name = (usable_gpus() or (("0", ""),))[0][1] or "GPU"
    return Accelerator(model_of(name) or name, cuda=True)


def with_torch() -> str:
    """Return the device for tensors, on the nodes and here."""
    if find_spec("torch") is None:
        raise NotPossibleError("This Python has no torch.")
    import torch

    if not torch.cuda.is_available():
        raise NotPossibleError(f"torch {torch.__version__} cannot use CUDA here.")
    return CUDA


def timed(fn: Callable[[], Any]) -> float:
    """Return the seconds that a call takes, as the median of five."""
    return statistics.median(_seconds(fn) for _ in range(5))


def _seconds(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def found() -> str:
    """Compare NVML, nvidia-smi and a pool; request a GPU that does not exist."""
    names = [name for _, name in usable_gpus() or ()]
    said = "no nvidia-smi here"
    with suppress(FileNotFoundError):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
        assert GPUS_VAR in os.environ or lines == names, f"nvidia-smi lists {lines}, NVML {names}"
        said = "as nvidia-smi has it"
    with pool() as own:
        stats = own.stats().nodes[0].gpus
        assert [gpu.name for gpu in stats] == names[:1], f"the node's statistics show {stats}"
    if model_of(names[0]) is None:
        return f"{len(names)} x {names[0]}, {said}; a kind that is not known, which passes for any"
    other = "T4" if accelerator().name != "T4" else "A100"
    try:
        with pool(accelerator=other):
            raise AssertionError(f"a pool that asked for {other} opened")
    except ProviderError as error:
        assert "this machine shows" in str(error), error
    return f"{len(names)} x {names[0]}, {said}; {other} is refused"


def places() -> str:
    """Check one GPU for a node, one rank per GPU, and two ranks on one GPU."""
    device = with_torch()
    with pool() as own:
        count, names = on_node.place() >> own
        assert (count, len(names)) == (1, 1), f"the pool says {count} GPUs, CUDA shows {names}"
    with pool(worker=Worker(per_node="gpu")) as own:
        assert (on_node.place() >> own)[0] == 1
    two = Worker(per_node=2)
    with pool(worker=two, plugins=[torch_plugin()]) as own:
        sums = list(on_node.summed(device) @ own)
    assert sums == [("gloo", 2.0)] * 2, sums
    try:
        with pool(worker=two, plugins=[torch_plugin(backend="nccl")]):
            raise AssertionError("NCCL took two ranks on one GPU")
    except PluginError as error:
        assert "share one" in str(error), error
    return f"{names[0]} is cuda:0; two ranks add by gloo; NCCL is refused"


def containers() -> str:
    """Check NVML inside a container of this machine's engine."""
    from skyward.engine import Engine

    try:
        engine = Engine.connect()
    except SkywardError as error:
        raise NotPossibleError(f"No Docker engine: {error}") from error
    if engine.gives_gpus() is False:
        raise NotPossibleError("The Docker engine gives containers no GPU; it lacks NVIDIA's Container Toolkit.")

    def look() -> tuple[list[str], int, str]:
        import resource
        import shutil

        from skyward.runner.usage import Gpus

        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return [name for _, name in Gpus().names], shutil.disk_usage("/dev/shm").total, str(locked)

    with pool(provider=Docker()) as own:
        names, shared, locked = compute(look)() >> own
    assert len(names) == 1, f"the container sees {names}"
    return f"{names[0]}; /dev/shm has {shared / 1e9:.1f} GB; limit of locked memory {locked} (-1: none)"


def training() -> str:
    """Time steps in a call and under torchrun; check AMP and torch.compile."""
    device = with_torch()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command += ["-m", on_node.__name__]
    ratios = []
    with pool() as own:
        on_node.trained(device, 10) >> own
        for _ in range(3):  # alternately, because single runs vary
            here = on_node.trained(device) >> own
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
            ratios.append(here / float(done.stdout.split()[-1]))
        half = on_node.in_half_precision(device) >> own
        assert half == "torch.bfloat16", half
        assert on_node.compiled(device) >> own == 2000
    return f"DDP beside torchrun {statistics.median(ratios):.3f} (median of 3); AMP; torch.compile"


def tensors() -> str:
    """Send tensors both ways, also to a client without CUDA; compare 1 GiB with `.cpu()` and pickle."""
    device = with_torch()
    import torch

    from skyward.wire import payload

    with pool() as own:
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
            sent = torch.ones(3, device=device).to(dtype)
            back = on_node.doubled(sent) >> own
            assert back.device == sent.device
            assert back.equal(sent * 2)
        assert (on_node.doubled(torch.ones(3).pin_memory()) >> own).sum() == 6
        module = on_node.module_on(torch.nn.Linear(8, 8), device) >> own
        assert {each.device.type for each in module.parameters()} == {device}
        count = 2**28  # 1 GiB
        result = timed(lambda: on_node.made(count, device) >> own)
    tensor = torch.ones(count, device=device)
    plain = timed(lambda: pickle.loads(pickle.dumps(tensor.cpu(), 5)))
    data, buffers = payload.dumps(torch.ones(10, device=device))
    code = "import sys, pickle; from skyward.wire import payload\n"
    code += "data, buffers = pickle.load(sys.stdin.buffer); print(payload.loads(data, buffers).device)"
    without = {**os.environ, GPUS_VAR: ""}
    packed = pickle.dumps((data, [bytearray(each) for each in buffers]))
    done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True, env=without)
    assert done.stdout.strip() == b"cpu", done.stdout
    return f"dtypes, pinned memory, modules; a result of 1 GiB in {result:.2f} s, .cpu() and pickle {plain:.2f} s"


def jax() -> str:
    """Check a compiled function, a pytree in both directions, and two ranks on one GPU."""
    if find_spec("jax") is None:
        raise NotPossibleError("This Python has no jax.")
    with pool() as own:
        platform, total = on_node.on_jax() >> own
        if platform != "gpu":
            raise NotPossibleError(f"JAX computes on {platform} here: it has no CUDA.")
        import jax.numpy as jnp

        assert total == 2000
        assert float((on_node.doubled({"a": jnp.ones(3)}) >> own)["a"].sum()) == 6
    with pool(worker=Worker(concurrency=2, executor="process")) as own:
        assert list(own.map(on_node.on_jax, range(8))) == [("gpu", 2000.0)] * 8
    return "jit, a pytree, two processes on one GPU"


def ends() -> str:
    """Check that calls end while a kernel runs, that the memory is freed, and that the next call works."""
    device = with_torch()
    said: list[str] = []
    with pool() as own:
        on_node.computes(device) >> own
        before = _used()
        for name, (end, expected) in _ENDS.items():
            try:
                took = _seconds(partial(_ended, end, expected, own))
                freed = _seconds(partial(_wait_until_free, before))
                again = _seconds(lambda: on_node.computes(device) >> own)
            except Exception as error:
                error.add_note(f"After: {', '.join(said) or 'nothing'}; in: {name}.")
                raise
            said.append(f"{name} {took:.2f} s, free after {freed:.1f} s, next call {again:.1f} s")
    return "; ".join(said)


def _ended(end: Callable[[ComputePool], object], expected: Callable[[BaseException], bool], own: Any) -> None:
    try:
        end(own)
    except BaseException as error:
        if not expected(error):
            raise
    else:
        raise AssertionError("the call returned")


def _cancelled(own: ComputePool) -> None:
    future = on_node.spin(_SPIN_S) > own
    time.sleep(3)
    future.cancel()
    future.result()


def _interrupted(own: ComputePool) -> None:
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
    on_node.spin(_SPIN_S) >> own


def _is_of(*kinds: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kinds)


def _says(text: str) -> Callable[[BaseException], bool]:
    return lambda error: text in f"{type(error).__name__} {error}"


_ENDS: dict[str, tuple[Callable[[ComputePool], object], Callable[[BaseException], bool]]] = {
    "limit of 3 s": (lambda own: on_node.spin(_SPIN_S).with_timeout(3) >> own, _is_of(TaskTimeoutError)),
    "cancel": (_cancelled, _says("Cancelled")),
    "Ctrl-C": (_interrupted, _is_of(KeyboardInterrupt)),
    "kill -9": (lambda own: on_node.die() >> own, _is_of(WorkerLostError)),
    "out of memory": (lambda own: on_node.take_too_much() >> own, _says("OutOfMemory")),
    "assertion": (lambda own: on_node.assert_in_a_kernel() >> own, _says("device-side assert")),
}


def _used() -> int:
    """Return the bytes in use on the first GPU."""
    used = Gpus(visible=os.environ.get(GPUS_VAR)).read()[0]["memory"]
    if used is None:
        raise NotPossibleError("NVML does not tell how much of the GPU's memory is in use.")
    return int(used)


def _wait_until_free(before: int) -> None:
    deadline = time.monotonic() + 20
    while (used := _used()) > before + _SLACK_BYTES:
        if time.monotonic() > deadline:
            raise AssertionError(f"{(used - before) / _MB:.0f} MB of the GPU were not free again after 20 s")
        time.sleep(0.05)


def absent() -> str:
    """Check that a rank waiting in a collective for one that has returned gets an error."""
    device = with_torch()
    with pool(worker=Worker(per_node=2), plugins=[torch_plugin()]) as own:
        start = time.perf_counter()
        try:
            on_node.comes_only_as_rank_0(device) @ own
        except SkywardError as error:
            took = time.perf_counter() - start
            return f"an error after {took:.1f} s: {str(error).partition('. ')[0]}"
    raise AssertionError("a collective that one of two ranks had left ended without an error")


def figures() -> str:
    """Time an argument of 256 MB, a no-op beside a busy GPU, and NVML."""
    device = with_torch()
    import torch

    tensor = torch.ones(64_000_000)
    with pool() as own:
        on_node.nothing(tensor) >> own
        argument = timed(lambda: on_node.nothing(tensor) >> own)
    with pool(worker=Worker(concurrency=2)) as own:
        on_node.computes(device) >> own
        future = on_node.spin(10.0) > own
        time.sleep(3)  # until its kernel runs
        noop = timed(lambda: on_node.nothing() >> own)
        future.cancel()
    first = _seconds(Gpus)
    reading = timed(Gpus().read)
    return (
        f"256 MB as argument {argument * 1e3:.0f} ms; no-op beside a busy GPU {noop * 1e6:.0f} us; "
        f"NVML {first * 1e3:.0f} ms once, then {reading * 1e6:.0f} us"
    )


def outcome_of(check: Callable[[], str]) -> dict[str, str]:
    """Run a check; return its state and text."""
    try:
        return {"state": SEEN, "text": check()}
    except NotPossibleError as error:
        return {"state": IMPOSSIBLE, "text": str(error)}
    except Exception as error:  # a GPU, torch or a pool may raise anything
        notes = " ".join(getattr(error, "__notes__", ()))
        return {"state": FAILED, "text": f"{type(error).__name__}: {error} {notes}".strip()[:1000]}


if __name__ == "__main__":
    import json

    print(f"\n{json.dumps(outcome_of(globals()[sys.argv[1]]))}")
