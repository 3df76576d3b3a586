"""Transfer of an image from this machine to many: a stream to all, only the missing layers, or pulls of a registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import IO

from skyward.builder.cache import cache_folder
from skyward.builder.events import Report, note, readable, share, warn
from skyward.engine import Images
from skyward.engine.address import EngineAddress
from skyward.engine.images import Archive, Pull, load, read, save
from skyward.errors import ImageError, RegistryError, SkywardError
from skyward.nodes.ssh_host import Machine
from skyward.system import Full, Queue, threading, time
from skyward.system.futures import ThreadPoolExecutor

_SAY_EVERY_S = 3.0
_LOOK_S = 0.2
_RETRYING_S = 5.0  # an engine asks a dead registry for minutes
_STILL_S = 5.0  # said when nothing has come for so long
_SILENT_S = 30.0
_MACHINES = 8  # asked side by side
_LOOKED_AT = 50  # images of a machine that are compared, the newest; each is a question
_AHEAD = 16  # chunks that the fastest machine may be ahead of the slowest


@dataclass(slots=True)
class _Transfer:
    """The transfer to one machine, in a thread of its own."""

    machine: Machine
    work: Callable[[], None]
    failure: SkywardError | None = None
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"image-{self.machine.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except SkywardError as error:
            self.failure = error


def send(source: EngineAddress, ref: str, size: int, machines: Sequence[Machine], report: Report) -> None:
    """Send an engine's image to machines: it is read once and sent to all of them in parallel.

    Args:
        source: the engine that has it.
        ref: its tag, which it gets there as well.
        size: its bytes.
        machines: who lack it.
        report: receives progress.

    Raises:
        SkywardError: a machine could not take it; all others have it.
    """
    queues = [Queue[bytes | None](_AHEAD) for _ in machines]
    transfers = [
        _Transfer(machine, partial(load, machine.engine_address, ref, iter(queue.get, None)))
        for machine, queue in zip(machines, queues, strict=True)
    ]
    names = ", ".join(machine.name for machine in machines)
    report(note(f"sending the image, {readable(size)}, to {names}"))
    for transfer in transfers:
        transfer.start()
    sent, began = 0, time.monotonic()
    said = began
    try:
        for chunk in save(source, ref):
            sent += len(chunk)
            for queue, transfer in zip(queues, transfers, strict=True):
                _put(queue, chunk, transfer)
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                for queue, transfer in zip(queues, transfers, strict=True):
                    there = sent - queue.qsize() * len(chunk)
                    report(note(f"{transfer.machine.name}: {share(there, size)}"))
    finally:
        for queue, transfer in zip(queues, transfers, strict=True):
            _put(queue, None, transfer)
    _finish(transfers, report, began)


def send_missing_layers(source: EngineAddress, ref: str, machines: Sequence[Machine], report: Report) -> list[Machine]:
    """Send machines that have most of an image's layers the others; gives the machines that still lack the image.

    The image is written to a file first, since the archive names its layers at the end. A machine that cannot load it
    because a layer is missing after all still lacks it.
    """
    with ThreadPoolExecutor(_MACHINES, thread_name_prefix="skyward-layers") as threads:
        own = _layers(Images(source), ref)
        shared = dict(zip(machines, threads.map(partial(_shared, own), machines), strict=True))
    if not any(2 * count >= len(own) for count in shared.values()):
        return list(machines)
    with TemporaryFile(dir=cache_folder()) as file:  # it has no name, so that nothing is left whatever happens
        try:
            file.writelines(save(source, ref))
        except OSError as error:  # no room for it here; whole images are passed on as they come
            warn(f"The image {ref} cannot be written to disk to send only parts of it: {error.strerror}.")
            return list(machines)
        return _send_rest(file, ref, shared, report)


def _send_rest(file: IO[bytes], ref: str, shared: Mapping[Machine, int], report: Report) -> list[Machine]:
    file.flush()
    file.seek(0)
    archive, whole = Archive.of(file), os.fstat(file.fileno()).st_size
    pieces = {machine: archive.without(count) for machine, count in shared.items()}
    sizes = {machine: sum(end - start for start, end in parts) for machine, parts in pieces.items()}
    began, transfers = time.monotonic(), list[_Transfer]()

    def load_rest(machine: Machine) -> None:
        load(machine.engine_address, ref, read(file, pieces[machine]))

    for machine, size in sizes.items():
        if 2 * size < whole:
            report(note(f"sending {readable(size)} of the image to {machine.name}, which has the other layers"))
            transfers.append(_Transfer(machine, partial(load_rest, machine)))
            transfers[-1].start()
    for transfer in transfers:
        transfer.thread.join()
        if transfer.failure is None:
            report(note(f"{transfer.machine.name}: has the image after {time.monotonic() - began:.1f} s"))
        else:
            report(note(f"{transfer.machine.name} could not add them to what it has: {transfer.failure}"))
    done = {transfer.machine for transfer in transfers if transfer.failure is None}
    return [machine for machine in shared if machine not in done]


def _layers(images: Images, ref: str) -> Sequence[str]:
    return list(((images.inspect(ref) or {}).get("RootFS") or {}).get("Layers") or ())


def _shared(own: Sequence[str], machine: Machine) -> int:
    """The number of these layers, from the lowest up, that some image of a machine has; 0 with containerd's store."""
    images = Images(machine.engine_address)
    if images.in_containerd():
        return 0
    there = [_layers(images, str(found["Id"])) for found in images.listed()[:_LOOKED_AT]]
    return max((_in_common(own, layers) for layers in there), default=0)


def _in_common(own: Sequence[str], others: Sequence[str]) -> int:
    pairs = enumerate(zip(own, others, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(own), len(others)))


def pull(ref: str, name: str, auth: Mapping[str, str], machines: Sequence[Machine], report: Report) -> None:
    """Have each machine's engine pull an image by its digest, and tag it.

    Args:
        ref: `repository@digest`.
        name: the tag it gets.
        auth: credentials for these pulls; no engine keeps them.
        machines: who lack it.
        report: receives progress.

    Raises:
        SkywardError: a machine could not get it; all others have it.
    """
    pulls = [Pull(machine.engine_address, ref, auth) for machine in machines]

    def work(under_way: Pull, machine: Machine) -> None:
        under_way.run()
        Images(machine.engine_address).tag(ref, name)

    transfers = [
        _Transfer(machine, partial(work, under_way, machine))
        for under_way, machine in zip(pulls, machines, strict=True)
    ]
    report(note(f"pulling {ref} on {', '.join(machine.name for machine in machines)}"))
    began = said = time.monotonic()
    for transfer in transfers:
        transfer.start()
    try:
        while any(transfer.thread.is_alive() for transfer in transfers):
            next(transfer for transfer in transfers if transfer.thread.is_alive()).thread.join(_LOOK_S)
            for under_way, transfer in zip(pulls, transfers, strict=True):
                _give_up_if_stalled(under_way, transfer, ref)
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                for under_way, transfer in zip(pulls, transfers, strict=True):
                    if transfer.thread.is_alive():
                        report(note(f"{transfer.machine.name}: {_how_far(under_way)}"))
    finally:
        for under_way in pulls:
            under_way.stop()
    _finish(transfers, report, began)


def _how_far(under_way: Pull) -> str:
    still_s = time.monotonic() - under_way.moved
    still = f", and nothing has come for {still_s:.0f} s" if still_s > _STILL_S else ""
    return under_way.retrying or f"{share(under_way.bytes, under_way.total)}{still}"


def _give_up_if_stalled(under_way: Pull, transfer: _Transfer, ref: str) -> None:
    """End a pull that makes no progress."""
    still_s = time.monotonic() - under_way.moved
    if not transfer.thread.is_alive() or still_s < (_RETRYING_S if under_way.retrying else _SILENT_S):
        return
    under_way.stop()
    transfer.thread.join()
    registry = ref.partition("/")[0]
    transfer.failure = RegistryError(
        f"{transfer.machine.name} could not pull {ref}: the registry {registry} has given nothing for {still_s:.0f} s"
        f"{f', the engine says: {under_way.retrying}' if under_way.retrying else ''}.",
        "See that the registry runs and that the host reaches it, and try again; layers that are there stay.",
    )


def _put(queue: Queue[bytes | None], chunk: bytes | None, transfer: _Transfer) -> None:
    """Queue a chunk, unless the transfer has ended."""
    while transfer.thread.is_alive():
        try:
            queue.put(chunk, timeout=_LOOK_S)
            return
        except Full:
            continue


def _finish(transfers: Iterable[_Transfer], report: Report, began: float) -> None:
    failed = []
    for transfer in transfers:
        transfer.thread.join()
        if transfer.failure:
            failed.append(transfer)
        else:
            report(note(f"{transfer.machine.name}: has the image after {time.monotonic() - began:.1f} s"))
    if len(failed) == 1 and failed[0].failure:
        raise failed[0].failure
    if failed:
        lines = "\n".join(f"  {transfer.machine.name}  {transfer.failure}" for transfer in failed)
        raise ImageError(f"{len(failed)} hosts could not get the image:\n{lines}")
