"""The set-up of workers: sends included files, secrets and plugins to all at once, and waits for all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skyward._pool.background import Timers
from skyward._pool.code.bundle import CodeBundle, bundle_paths, local_modules
from skyward._pool.collective import diagnosis
from skyward._pool.collective.diagnosis import PATIENCE_S, Blame, is_noticed
from skyward._pool.config import PoolConfig
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.services import GatherCoordinator
from skyward.errors import PluginError
from skyward.model.image import Image
from skyward.model.instance import SETUP
from skyward.system import Empty, SimpleQueue, time
from skyward.system.futures import Future
from skyward.system.futures import TimeoutError as FutureTimeout
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import Kind, encode

_DUMP_S = 1.5  # how long the agents of late ranks may take to find out where those are
_LATER_S = 2.0  # a gather times out so much later than the set-up it is part of, whose error says more
_Ended = tuple[int, Future[None]]  # rank, outcome


class WorkerSetup:
    """The messages that set up a pool's workers: included files, secrets, plugins. Made before any node exists.

    Files that are baked into the nodes' image are not sent, unless there is no image, see `include`.

    Args:
        settings: what the pool is asked to be.
        image: the pool's, with what its plugins make of it.

    Raises:
        ConfigError: an included file is missing, or they are too large.
        PluginError: a plugin's bootstrap is not what it should be, or cannot be pickled.
    """

    def __init__(self, settings: PoolConfig, image: Image) -> None:
        self._names = ", ".join(plugin.name for plugin in settings.plugins)
        self._limit_s = settings.provision_timeout_s
        self._ranks = settings.worker.rank_names(settings.nodes.desired)
        self._sent = CodeBundle()
        self._setup: Frame | None = None
        self._code: Frame | None = None
        plugins: tuple[Buffer, ...] = ()
        if settings.plugins:
            from skyward.plugins import node_setup

            several = settings.worker.processes > 1
            setup = node_setup(settings.plugins, settings.cluster, several_processes=several)
            data, buffers = payload.dumps(setup)
            plugins = (data, *buffers)
            self._send(local_modules(setup))  # hooks may stand in modules of the user's own
        if plugins or settings.secrets:
            self._setup = Frame(Kind.SETUP, SETUP, encode(dict(settings.secrets)), plugins)
        if not image.bake:
            self.include(image)

    def include(self, image: Image) -> None:
        """Send the files that an image includes: the nodes' image does not have them.

        Raises:
            ConfigError: one is missing, or they are too large.
        """
        self._send(bundle_paths(image.includes, image.excludes))

    def _send(self, bundle: CodeBundle) -> None:
        known = self._sent
        self._sent = sent = CodeBundle.of(dict(known.files) | dict(bundle.files), known.programs | bundle.programs)
        if sent.files:
            self._code = Frame(Kind.CODE, 0, *payload.dumps((sent.files, sent.programs)))

    def enter(self, workers: Sequence[tuple[NodeClient, WorkerClient]], clock: Timers) -> None:
        """Give these workers the files, then let all enter the plugins together: collective ones wait for each other.

        Hooks can `gather` if these are all ranks of the pool; in a worker that is set up alone that fails at once.

        Raises:
            PluginError: some were not done in time; the message names their ranks.
            The error of the first rank that failed: what its hook raised, or a WorkerLostError. One that only tells of
                another rank's end gives way to that, if it is known soon.
        """
        deadline = time.monotonic() + self._limit_s
        gather = None
        if {worker.rank for _, worker in workers} == self._ranks.keys():
            gather = GatherCoordinator(self._ranks, clock, lambda: deadline + _LATER_S - time.monotonic())
        ended: SimpleQueue[_Ended] = SimpleQueue()
        for node, worker in workers:
            worker.gather = gather
            node.setups[worker.rank].add_done_callback(_tell(worker.rank, ended, gather))
        for _, worker in workers:
            for frame in (self._code, self._setup):
                if frame is not None:
                    worker.post_frame(frame)
            worker.flush()  # if it is gone, its reader learns why and says so in its place
        if self._setup is not None:
            self._wait({worker.rank: (node, worker) for node, worker in workers}, ended, gather, deadline)

    def _wait(
        self,
        left: dict[int, tuple[NodeClient, WorkerClient]],
        ended: SimpleQueue[_Ended],
        gather: GatherCoordinator | None,
        deadline: float,
    ) -> None:
        noticed: list[BaseException] = []  # errors that follow from another one, which may still be on its way
        while left:
            try:
                rank, outcome = ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                if noticed:
                    break
                raise PluginError(self._late(left, gather)) from None
            del left[rank]
            if (error := outcome.exception()) is not None:
                if not is_noticed(error):
                    raise error
                noticed.append(error)
                deadline = min(deadline, time.monotonic() + PATIENCE_S[Blame.NOTICED])
        if noticed:
            raise noticed[0]

    def _late(self, left: dict[int, tuple[NodeClient, WorkerClient]], gather: GatherCoordinator | None) -> str:
        name, waiting = gather.waiting() if gather is not None else ("", [])
        late = {rank: left[rank] for rank in sorted(left.keys() - set(waiting))}
        names = {rank: self._ranks.get(rank, str(worker)) for rank, (_, worker) in late.items()}
        text = f"The plugins ({self._names}) were not set up on {', '.join(names.values())} within {self._limit_s:g} s"
        if waiting:
            text += f"; {', '.join(self._ranks[rank] for rank in waiting)} waited there in gather({name!r})"
        text += ". Look at the late nodes' output above, or give provision_timeout= more time."
        where = diagnosis.grouped((names[rank], account) for rank, account in _accounts(late).items())
        return f"{text}\n{where}" if where else text


def _accounts(late: dict[int, tuple[NodeClient, WorkerClient]]) -> dict[int, str]:
    """Where each of these ranks is, as far as their agents find out."""
    deadline = time.monotonic() + _DUMP_S
    accounts = {}
    for rank, dump in {rank: node.dump(worker) for rank, (node, worker) in late.items()}.items():
        try:
            frames = diagnosis.of_dump(dump.result(max(0.0, deadline - time.monotonic())))
        except FutureTimeout:
            continue  # its node does not answer either
        if frames:
            accounts[rank] = f"was here:\n{diagnosis.excerpt(frames)}"
    return accounts


def _tell(rank: int, ended: SimpleQueue[_Ended], gather: GatherCoordinator | None) -> Callable[[Future[None]], None]:
    """A callback for the end of a rank's set-up: it tells the pool, then the ranks that wait for this one."""

    def tell(outcome: Future[None]) -> None:
        ended.put((rank, outcome))
        if gather is not None:
            gather.ended(rank, outcome.exception())

    return tell
