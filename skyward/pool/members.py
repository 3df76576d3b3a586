"""The nodes of a pool: started, replaced when they are lost, seen off when their hosts are taken away.

Each index has a node, or a thread that gets it one, or has been given up. A node in the place of a lost one has its
index, and with it its ranks; the others are told where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skyward.errors import PoolClosedError, PoolError, SkywardError
from skyward.pool.dispatch import Dispatcher
from skyward.pool.interrupt import uninterrupted
from skyward.pool.node import BEAT_S, DISMISSED, NodeLink, PoolLink
from skyward.pool.places import Places
from skyward.pool.regroup import Group
from skyward.pool.settings import PoolSettings
from skyward.pool.worker import WorkerLink
from skyward.providers.base import Host, Leaving
from skyward.runner.config import EXIT_DISMISSED
from skyward.system import threading, time
from skyward.system.futures import ThreadPoolExecutor

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # before the first attempts to replace a node
SLOW_S = 15.0  # before each one after them, for as long as the pool is open
SETTLED_S = 60.0  # a node that is lost sooner is replaced as slowly as if an attempt had failed
LEAVE_GRACE_S = 10.0  # for the plugins of a node that is seen off
_AT_ONCE = 16  # nodes started, or ended, at the same time
_LOOK_S = 0.1
_LAST_ATTEMPT_S = 30.0  # how long the end of the pool waits for attempts that are under way
Prepare = Callable[[Sequence[Host]], str | None]
Tell = Callable[[str], None]


class Members:
    """The nodes of a pool.

    Args:
        pool: its identifier.
        settings: what it is asked to be.
        places: where its nodes are.
        tell: prints a line that stays.
    """

    def __init__(self, pool: str, settings: PoolSettings, places: Places, tell: Tell) -> None:
        self._pool, self._settings, self._places, self._tell = pool, settings, places, tell
        self._changed = threading.Condition()
        self._nodes: dict[int, NodeLink] = {}  # the last one of each index
        self._leaving: list[NodeLink] = []  # seen off, with their successors among the others or on the way
        self._early: list[NodeLink] = []  # connected before the pool is open, to be set up together
        self._filling = set(range(settings.nodes.desired))  # indices that a thread gets a node for
        self._failed: dict[int, Exception] = {}  # why the last attempt for an index has failed
        self._absent: dict[int, str] = {}  # indices that have no node after many attempts, and why
        self._attempts: dict[int, int] = {}  # to replace the node of an index, since it was settled last
        self._failures: dict[int, int] = {}  # attempts for an index that failed, since it had a node
        self._since: dict[int, float] = {}  # when the node of an index began to serve
        self._threads: list[threading.Thread] = []
        self._starting = threading.Semaphore(_AT_ONCE)
        self._opened = False
        self._closed = threading.Event()
        self._released = threading.Event()

    def join(self, link: PoolLink, dispatcher: Dispatcher, group: Group, prepare: Prepare) -> None:
        """Say what its nodes serve, before any of them is started."""
        self._link, self._dispatcher, self._group, self._prepare = link, dispatcher, group, prepare
        threading.Thread(target=self._beat, name="skyward-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        """Keep the nodes alive, and notice those that are not (a thread that does nothing else, and never blocks)."""
        while not self._released.wait(BEAT_S):
            for node in self.all_nodes():
                node.beat()

    # the start -------------------------------------------------------------------------------------------------

    def start(self, hosts: Sequence[Host], image: str | None) -> None:
        """Start a node on each host, and block until enough are connected; the others follow in the background.

        A group needs all of its ranks, any other pool `nodes.min`.

        Raises:
            SkywardError: too many of them cannot be started: why the first one cannot, with the others' reasons.
        """
        nodes = self._settings.nodes
        needed = nodes.desired if self._group.collective else nodes.least
        for index, host in enumerate(hosts):
            self._places.put(index, host)
        for index in range(nodes.desired):
            self._spawn(index, hosts[index] if index < len(hosts) else None, image, begins=index < len(hosts))
        try:
            with self._changed:
                self._changed.wait_for(lambda: len(self._early) >= needed or self._hopeless(needed))
                if len(self._early) < needed:
                    raise self._reasons()
        except BaseException:
            with uninterrupted:
                self._closed.set()
                self.release()  # what is not there any more is waited for by no thread
            raise

    def open(self) -> list[NodeLink]:
        """The nodes that are connected by now, for the first set-up; from now on each one is set up by itself."""
        with self._changed:
            self._opened = True
            self._early.sort(key=lambda node: node.index)
            return list(self._early)

    def opened(self) -> None:
        """The first set-up is over: from now on lost nodes are replaced."""
        with self._changed:
            early, self._early = self._early, []
            self._filling -= {node.index for node in early if node.gone is None}
            self._since = {node.index: time.monotonic() for node in early}
        for node in early:
            if node.gone is not None:
                self._tell(f"node {node.index} on {node.host.name} is gone ({node.gone.text}); it is being replaced")
                self._spawn(node.index, node.host, None, begins=False)

    def _hopeless(self, needed: int) -> bool:
        nodes = self._settings.nodes
        failed = len(self._failed.keys() - {node.index for node in self._early})
        return failed > nodes.desired - nodes.least or nodes.desired - len(self._absent) < needed

    def _reasons(self) -> Exception:
        here = {node.index for node in self._early}
        errors = [self._failed[index] for index in sorted(self._failed.keys() - here)]
        if len(errors) == 1:
            return errors[0]
        kinds = {type(error) for error in errors}
        text = "\n".join(dict.fromkeys(map(str, errors)))
        try:
            return kinds.pop()(text) if len(kinds) == 1 else PoolError(text)
        except TypeError:  # a class that wants more than a text
            return PoolError(text)

    # getting a node for an index -------------------------------------------------------------------------------

    def _spawn(self, index: int, host: Host | None, image: str | None, *, begins: bool) -> None:
        name = f"skyward-start-{index}"
        thread = threading.Thread(target=self._fill, args=(index, host, image, begins), name=name, daemon=True)
        with self._changed:
            if self._closed.is_set():
                return
            self._threads = [each for each in self._threads if each.is_alive() or each.ident is None] + [thread]
        thread.start()

    def _fill(self, index: int, host: Host | None, image: str | None, begins: bool) -> None:
        """Get a node for an index, however many attempts it takes (a thread of its own).

        It `begins` on this host, with this image; otherwise the host is that of the node before, if there was one.
        """
        provider, accelerator = self._settings.provider, self._settings.accelerator
        while not self._closed.wait(0.0 if begins else self._next_wait(index)):
            try:
                with self._starting:
                    if not begins or host is None:
                        host = provider.replace(self._pool, host, accelerator)
                        image = self._prepare([host])
                    begins = False
                    node = self._begin(index, host, image)
                if self._is_early(node) or self._serves(node):
                    return
            except PoolClosedError as error:
                self._end(f"Pool {self._pool} cannot go on: {error}")
                return
            except Exception as error:  # whatever it is: callers may be waiting for this node
                if not self._note_failure(index, error):
                    return

    def _next_wait(self, index: int) -> float:
        """Seconds until the next attempt to replace the node of an index."""
        with self._changed:
            made = self._attempts.get(index, 0)
            self._attempts[index] = made + 1
        return WAITS_S[made] if made < len(WAITS_S) else SLOW_S

    def _begin(self, index: int, host: Host, image: str | None) -> NodeLink:
        """Start a node and connect to it."""
        with self._changed:
            self._places.put(index, host)
            launch = self._places.launch(index, image)
        node = NodeLink(index, host, host.start(launch), self._settings.worker, self._link, key=launch.key)
        try:
            with self._changed:
                if self._closed.is_set():
                    raise PoolClosedError(f"Pool {self._pool} was closed.")
                self._nodes[index] = node  # from here on `close` ends it
            for opened in node.open(self._settings.provision_timeout_s):
                opened.buffer = self._settings.worker.buffer
        except BaseException:
            self._discard(node)
            raise
        node.told = launch.compute_pool
        return node

    def _is_early(self, node: NodeLink) -> bool:
        """Tell all nodes where they are now; whether this one is to be set up together with those before it."""
        with self._changed:
            documents = [(each, self._places.document(each.index)) for each in self._nodes.values() if each.told]
            moved = [(each, document) for each, document in documents if each.told != document]
            for each, document in moved:
                each.told = document
        for each, document in moved:
            each.move(document)
        with self._changed:
            if not self._opened:
                self._early.append(node)
                self._changed.notify_all()
            return not self._opened

    def _serves(self, node: NodeLink) -> bool:
        """Let a node serve the pool; False if it is gone again."""
        self._found_again(node.index)
        try:
            self._group.joined(node)
        except BaseException:
            self._discard(node)
            raise
        with self._changed:
            if node.gone is None:
                self._failures.pop(node.index, None)
                self._filling.discard(node.index)
                self._since[node.index] = time.monotonic()
                self._changed.notify_all()
        if node.gone is not None:
            node.removed.wait(_LAST_ATTEMPT_S)
            return False
        self._tell(f"node {node.index} is ready on {node.host.name}")
        return True

    def _discard(self, node: NodeLink) -> None:
        try:
            node.discard()
        except SkywardError as error:
            self._tell(f"what was begun of node {node.index} could not be removed, and ends by its lease: {error}")

    def _note_failure(self, index: int, error: Exception) -> bool:
        """Tell why an attempt has failed; False if the pool cannot be opened any more, whose error tells all."""
        text = " ".join(str(error).split()) or repr(error)
        with self._changed:
            is_news = index not in self._absent or str(self._failed.get(index)) != str(error)
            self._failed[index] = error
            self._failures[index] = self._failures.get(index, 0) + 1
            give_up = self._failures[index] >= len(WAITS_S) and index not in self._absent
            self._changed.notify_all()
            if not self._opened and self._hopeless(self._settings.nodes.least):
                return False
        if self._closed.is_set():
            return True
        if is_news:
            self._tell(f"node {index} could not be started: {text}")
        if give_up:
            self._give_up(index, text)
        return True

    def _give_up(self, index: int, error: str) -> None:
        """Let nothing wait for a node that could not be had in many attempts; slower ones follow."""
        with self._changed:
            node = self._nodes.get(index)
            why = f" ({node.gone.text})" if node is not None and node.gone is not None else ""
            text = (
                f"node {index} is gone{why}, and could not be replaced in {len(WAITS_S)} attempts: {error} "
                f"The pool goes on trying every {SLOW_S:g} s."
            )
            self._absent[index] = text
            self._changed.notify_all()
        self._tell(" ".join(text.split()))
        self._dispatcher.give_up(self._ranks_of(index), text)
        self._group.abandoned(index, text)

    def _found_again(self, index: int) -> None:
        """A node that was given up has come after all: calls may wait for it again."""
        with self._changed:
            was_absent = self._absent.pop(index, None) is not None
        if was_absent:
            self._dispatcher.restore(self._ranks_of(index))

    def _ranks_of(self, index: int) -> range:
        per_node = self._settings.worker.processes
        return range(index * per_node, (index + 1) * per_node)

    def _end(self, text: str) -> None:
        """The pool was ended by somebody else: its calls fail, and nothing is replaced any more."""
        if not self._closed.is_set():
            self._dispatcher.close(PoolError(f"{text} Open another one."))
            self.stop()

    # what nodes and providers tell -----------------------------------------------------------------------------

    def gone(self, node: NodeLink) -> None:
        """A node is gone, and its calls are settled: have it replaced."""
        assert node.gone is not None
        if node.gone.code == EXIT_DISMISSED:
            self.dismissed()
            return
        with self._changed:
            if node in self._leaving:
                self._leaving.remove(node)
                return
            self._changed.notify_all()
            if self._nodes.get(node.index) is not node or node.index in self._filling or self._closed.is_set():
                return  # the thread that gets it looks for itself
            self._fill_again(node.index)
        self._tell(f"node {node.index} on {node.host.name} is gone ({node.gone.text}); it is being replaced")
        self._spawn(node.index, node.host, None, begins=False)

    def dismissed(self) -> None:
        """Another client ends the pool: that is no accident to be made good."""
        self._end(f"Pool {self._pool} {DISMISSED}.")

    def _fill_again(self, index: int) -> None:
        self._filling.add(index)
        if time.monotonic() - self._since.get(index, 0.0) > SETTLED_S:
            self._attempts[index] = 0

    def leaving(self, news: Leaving) -> None:
        """A host is about to be taken away: its node gets no more calls, and another one is asked for at once."""
        until = time.monotonic() + news.left_s
        with self._changed:
            node = next((node for node in self._nodes.values() if node.host is news.host), None)
            if node is None or node.index in self._filling or node.gone is not None or self._closed.is_set():
                return
            self._fill_again(node.index)
            self._leaving.append(node)
        self._tell(f"node {node.index} on {node.host.name} {news.text}: it gets no new calls, and is being replaced")
        threading.Thread(target=self._see_off, args=(node, until), name="skyward-leave", daemon=True).start()
        self._spawn(node.index, node.host, None, begins=False)

    def _see_off(self, node: NodeLink, until: float) -> None:
        """Let a node finish what it runs, until then, and end it (a thread of its own)."""

        def left() -> float:
            return until - time.monotonic()

        self._group.see_off(node, left)
        while any(map(self._dispatcher.held, node.workers)) and left() > 0 and node.gone is None:
            if self._closed.wait(_LOOK_S):
                return
        if node.gone is not None:
            return
        if any(map(self._dispatcher.held, node.workers)):
            node.declare_lost("its host was about to be taken away, and its time was up")
            return
        node.leave(min(LEAVE_GRACE_S, max(1.0, left())))
        with self._changed:
            if node not in self._leaving:
                return  # it was lost, or the pool was closed, while it left
            self._leaving.remove(node)
        self._group.seen_off(node)

    def kill(self, worker: WorkerLink) -> None:
        """End a worker at once; its agent starts it again."""
        for node in (*self.nodes, *self._leaving):
            if worker in node.workers:
                node.kill(worker)

    # facts -----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[NodeLink, ...]:
        """The nodes of all indices that have ever had one, in order; also those that are gone."""
        with self._changed:
            return tuple(self._nodes[index] for index in sorted(self._nodes))

    def all_nodes(self) -> list[NodeLink]:
        """Those, and the ones that are seen off; takes no lock, which may be held for ever in a forked process."""
        return [*self._nodes.values(), *self._leaving]

    @property
    def count(self) -> int:
        """How many nodes take calls."""
        with self._changed:
            return sum(node.gone is None and index not in self._filling for index, node in self._nodes.items())

    @property
    def replacing(self) -> bool:
        """Whether a node is being started or replaced."""
        with self._changed:
            return bool(self._filling)

    def wait_whole(self) -> None:
        """Block while nodes are being started or replaced; Ctrl-C gets through.

        Raises:
            PoolError: one was given up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._absent or self._is_whole() or self._closed.is_set())
            absent = next(iter(self._absent.values()), None)
        if absent is not None:
            raise PoolError(f"A call for every node cannot be run: {absent}")

    def _is_whole(self) -> bool:
        """Whether every node is there; one that is gone may not be among those that are replaced yet."""
        return not self._filling and all(node.gone is None for node in self._nodes.values())

    # the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Replace nothing any more."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def close(self, grace_s: float) -> None:
        """Let all nodes leave their plugins and end; whatever is not gone after `grace_s` is removed."""
        self.stop()
        with self._changed:
            nodes = [*self._nodes.values(), *(node for node in self._leaving if node not in self._nodes.values())]
            self._nodes, self._leaving = {}, []
        if nodes:
            with ThreadPoolExecutor(min(_AT_ONCE, len(nodes)), thread_name_prefix="skyward-stop") as threads:
                ends = [threads.submit(node.close, grace_s) for node in nodes]
            for end in ends:
                end.result()

    def release(self) -> None:
        """Remove what is left of the pool, and wait for attempts that are under way, which end by that."""
        self._settings.provider.release(self._pool)
        self._await_threads()
        self._released.set()

    def _await_threads(self) -> None:
        with self._changed:
            under_way = [thread for thread in self._threads if thread.is_alive()]
        deadline = time.monotonic() + _LAST_ATTEMPT_S
        for thread in under_way:
            thread.join(max(0.0, deadline - time.monotonic()))
