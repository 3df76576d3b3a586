"""The allocation of a pool on rented machines: launch, connect by SSH, hear of spot notices, replace, end."""

from __future__ import annotations

import itertools
import logging
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.events import note
from skyward.errors import PoolClosedError, ProviderError, SkywardError
from skyward.model.ssh import SshHost
from skyward.nodes.node import Host
from skyward.nodes.run_directory import PoolDirectory, runtime_base, sweep_orphans
from skyward.providers.base import Allocation, PoolRequest, PreemptionNotice
from skyward.providers.cloud.base import Cloud, Instance, Launcher, MachineOffer, Notice, destroy, sweep
from skyward.providers.cloud.boot import NO_NOTICES, NOTICE, USER, FirstHostKey, PoolKeys, user_data
from skyward.providers.cloud.cost import Budget, CostMeter, find_offers
from skyward.providers.cloud.launch import Batch, StartingMachine, launch, wait_ready
from skyward.providers.reaper import Reaper
from skyward.providers.ssh import SshAllocation, SshNodeHost
from skyward.system import threading

if TYPE_CHECKING:
    from skyward.providers.cloud.provider import CloudProvider

_log = logging.getLogger(__name__)
RENEW_S = 600.0
_JOIN_ATTEMPTS, _JOIN_AGAIN_S = 3, 2.0
_WAIT_FOR_NOTICE = r"""
[ ! -e "$2" ] || { echo blind; exit 0; }
while sleep 1; do
    [ -s "$1" ] && exec cat "$1"
done
"""


@dataclass(frozen=True, slots=True)
class _Rented:
    """A machine that is a host of the pool, with the watch for its notice if the cloud may take it back."""

    id: str
    host: SshNodeHost
    watch: NoticeWatch | None

    @property
    def is_usable(self) -> bool:
        """Whether another node can be started on it."""
        return not self.host.machine.is_gone and not self.is_leaving

    @property
    def is_leaving(self) -> bool:
        """Whether the cloud has said that it takes the machine back."""
        return self.watch is not None and self.watch.notice is not None


class CloudAllocation(Allocation):
    """The machines of one pool, with their keys, cost, and the process that ends them if this one dies."""

    def __init__(self, provider: CloudProvider, cloud: Cloud, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider, self._cloud = provider, cloud
        self._meter = CostMeter(request.report)
        self._budget = Budget(request.budget, request.pool_id, self._meter, request.report, self._budget_spent)
        self._rented: dict[Host, _Rented] = {}
        self._trusted: dict[str, str] = {}  # the host key that each machine has generated, by address
        self._lock = threading.Lock()
        self._replacements = itertools.count(1)
        self._is_handed_over = False
        self._cleanup = ExitStack()  # undoes in reverse order what `acquire` has made
        self._keys: PoolKeys
        self._launcher: Launcher
        self._offer: MachineOffer  # of the first machines
        self._ssh: SshAllocation

    def acquire(self) -> Sequence[Host]:
        """Rent a machine for each node, and connect to all of them.

        Raises:
            ConfigError: the cloud cannot have what is requested, or its settings are incomplete.
            ProviderError: nothing is offered, affordable or available, or machines do not become ready.
            ImageError: the pool's image cannot be had; nothing has been launched.
        """
        request, cloud = self.request, self._cloud
        request.report(note(f"looking for machines in {cloud.region}"))
        offers = find_offers(cloud, request)
        self._launcher = cloud.launcher(request)
        sweep(cloud)
        self._begin()
        self._launcher.prepare()
        threading.Thread(target=self._renew, name=f"skyward-{request.pool_id}-renew", daemon=True).start()
        first, self._offer, instances = self._launch(request.nodes, offers, 0)
        starting = self._starting(first, instances)
        with self._within_budget():
            self._wait_ready(starting)
            self._ssh = self._provider.ssh_allocation(request, [each.host for each in starting])
            self._cleanup.callback(self._ssh.close)
            hosts = self._ssh.acquire()
        return [self._add(host, each, self._offer) for host, each in zip(hosts, instances, strict=True)]

    @property
    def on_machines(self) -> SshAllocation:
        """The machines as any others that are reached by SSH, after `acquire`."""
        return self._ssh

    @property
    def hourly_cost(self) -> float:
        """USD per hour of the machines that run."""
        return self._meter.hourly()

    def copy_keys(self, folder: Path) -> PoolKeys:
        """Put the keys by which the machines are reached into a directory that outlives this process."""
        return self._keys.copy(folder)

    def hand_over(self) -> None:
        """Close, and leave the machines to whoever has taken leases on them; without one they shut themselves down."""
        self._is_handed_over = True
        self.close()

    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Compile the image, build it unless it exists, and deliver it to the machines; see `sky.SSH`."""
        with self._within_budget():
            return self._ssh.prepare(hosts)

    def replace(self, lost: Host | None) -> Host:
        """Rent one more machine, of the first machines' offer if possible, and end the lost one.

        Raises:
            ProviderError: none is available or affordable now, or it does not become ready.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        self.check_open()
        self._budget.check()
        with self._lock:
            old = self._rented[lost] if lost is not None else None
        if old is not None and old.is_usable:
            return old.host  # its node has ended, not the machine
        self._launcher.renew()
        offers = find_offers(self._cloud, self.request)
        offers.sort(key=lambda each: each.key != self._offer.key)
        if old is not None:
            self._meter.stop(old.id)
            existing = {each.id for each in self._cloud.instances(self.request.pool_id) if each.exists}
            if old.id in existing and not old.is_leaving:  # else calls may finish until the cloud ends it
                self._cloud.terminate([old.id])
        return self._rent_one(offers)

    def release(self) -> None:
        """End everything of the pool at the cloud, and wait until it is gone.

        Raises:
            ProviderError: the cloud cannot be reached, or machines do not end; names them.
        """
        with self._lock:  # a replacement that `replace` adds meanwhile is in `cleanup`, or is refused
            cleanup = self._cleanup.pop_all()
        cleanup.close()

    def _begin(self) -> None:
        """Generate the pool's keys and start its reaper; from then on the launcher may create things."""
        pool = self.request.pool_id
        self._cleanup.callback(self._end_meter)
        self._cleanup.callback(self._budget.end)
        self._budget.begin()
        sweep_orphans()
        directory = PoolDirectory.create(f"{pool}.{self._provider.name}", runtime_base())
        self._cleanup.callback(directory.remove)
        self._keys = PoolKeys.generate(directory.path)
        reaper = Reaper(self._provider, pool)
        self._cleanup.callback(reaper.relieve, self._end_machines)

    def _end_machines(self) -> None:
        if not self._is_handed_over:
            destroy(self._cloud, self.request.pool_id)

    def _end_meter(self) -> None:
        self._meter.end(has_ended=not self._is_handed_over)

    def _launch(
        self, nodes: int, offers: Sequence[MachineOffer], number: int
    ) -> tuple[FirstHostKey, MachineOffer, list[Instance]]:
        """Launch machines with a first host key of their own; from then on they cost money."""
        request, first = self.request, self._keys.first_host_key(number)
        start, budget = self._cloud.first_start, self._budget

        def told(offer: MachineOffer) -> str:
            limit = budget.guard_s(offer, nodes)
            return user_data(self._keys.login_public, first, request.lease_s, start, limit)

        batch = Batch(pool=request.pool_id, nodes=nodes, user_data=told, longest_s=budget.longest_s, number=number)
        offer, instances = launch(self._cloud, self._launcher, batch, offers, request.report)
        self._meter.start(offer, (each.id for each in instances))
        self._share_budget()
        return first, offer, instances

    def _rent_one(self, offers: Sequence[MachineOffer]) -> Host:
        first, offer, (instance,) = self._launch(1, offers, next(self._replacements))
        try:
            self.check_open()
            (starting,) = self._starting(first, [instance])
            self._wait_ready([starting])
            return self._add(self._join(starting.host), instance, offer)
        except SkywardError:  # no node uses it, and the next attempt rents another one
            self._meter.stop(instance.id)
            self._cloud.terminate([instance.id])
            raise

    def _join(self, host: SshHost) -> Host:
        """Connect to a machine that is ready: one connection that fails is no reason to rent another machine."""
        for _ in range(_JOIN_ATTEMPTS - 1):
            try:
                return self._ssh.join(host)
            except ProviderError as error:
                self.request.report(note(f"{host.name} is tried again: {error}"))
            self.ended.wait(_JOIN_AGAIN_S)
            self.check_open()
        return self._ssh.join(host)

    def _starting(self, first: FirstHostKey, instances: Iterable[Instance]) -> list[StartingMachine]:
        """The machines of a launch, with the way to them for the first connection and for all others."""
        key, known_hosts = str(self._keys.login_key), str(self._keys.known_hosts)
        starting = []
        for each in instances:
            host = SshHost(host=each.address, user=USER, key=key, known_hosts=known_hosts, trusts_jumps=True)
            before = replace(host, known_hosts=str(first.known_hosts))
            starting.append(StartingMachine(id=each.id, address=each.address, first=before, host=host))
        first.trust(each.address for each in starting)
        return starting

    def _wait_ready(self, starting: Sequence[StartingMachine]) -> None:
        request = self.request
        gpus = request.accelerator is not None
        wait_ready(starting, gpus, self._trust, request.report, self.ended, self._running_machines)

    def _running_machines(self) -> set[str]:
        found = self._cloud.instances(self.request.pool_id)
        return {each.id for each in found if each.state in ("pending", "running")}

    def _trust(self, address: str, key: str) -> None:
        """Trust a machine's own host key, and no other key at its address."""
        with self._lock:
            self._trusted[address] = key
            self._keys.trust(self._trusted)

    def _add(self, host: Host, instance: Instance, offer: MachineOffer) -> Host:
        """Note a machine as a host of the pool; if the cloud may take it back, watch for the notice."""
        assert isinstance(host, SshNodeHost)
        with self._lock:
            self.check_open()
            watch = self._watch(host, instance) if offer.market == "spot" else None
            self._rented[host] = _Rented(instance.id, host, watch)
        self._share_budget()
        return host

    def _watch(self, host: SshNodeHost, instance: Instance) -> NoticeWatch:
        cloud = self._cloud

        def tell(notice: Notice, text: str) -> None:
            self.request.on_preemption(PreemptionNotice(host=host, text=text, left_s=notice.left_s))

        watch = NoticeWatch(
            f"The machine {instance.id} of pool {self.request.pool_id}",
            cloud.name,
            host.machine.connection.through,
            tell,
        )
        self._cleanup.callback(watch.close)
        return watch

    def _share_budget(self) -> None:
        """Tell all machines when the budget is spent, as far as that is known now: they end themselves then."""
        with self._lock:
            hosts = [each.host for each in self._rented.values() if not each.host.machine.is_gone]
        for host in hosts:
            try:
                if (left_s := self._budget.guard_s()) is not None:
                    host.machine.watchdog.until(left_s)
            except SkywardError as error:
                _log.debug("%s", error)  # it is being lost; its guard goes by what it knows

    @contextmanager
    def _within_budget(self) -> Iterator[None]:
        """Where something fails because the budget was spent meanwhile, say that instead."""
        try:
            yield
        except SkywardError:
            self._budget.check()
            raise

    def _budget_spent(self, text: str) -> None:
        """End the pool's calls and machines. What else there is of it goes at the end of its block."""
        self.request.on_budget_spent(text)
        machines = self._meter.running()
        try:
            self._cloud.terminate(machines)
        except ProviderError as error:
            _log.warning(
                "Pool %s has spent its budget, and its machines could not be ended: %s Their guards shut them down.",
                *(self.request.pool_id, error),
            )
            return
        for machine in machines:
            self._meter.stop(machine)

    def _renew(self) -> None:
        """Note at the cloud every ten minutes that this client is alive, as long as the pool is open.

        Without that, clients of other pools would take the resources of a pool without machines for forgotten.
        """
        while not self.ended.wait(RENEW_S):
            try:
                self._launcher.renew()
            except PoolClosedError:
                return  # another client has ended the pool
            except ProviderError as error:
                _log.warning(
                    "Pool %s could not note at %s that its client is alive: %s After an hour without that, and while "
                    "the pool has no machine, another pool's client removes what this pool has there.",
                    *(self.request.pool_id, self._cloud.name, error),
                )


class NoticeWatch:
    """Waits for the cloud's notice that it takes one machine away (spot, maintenance), until its connection ends.

    Args:
        machine: the machine in sentences, such as "The machine i-0123 of pool 1a2b3c4d".
        cloud: the cloud in sentences.
        through: the machine, through a connection that is open.
        tell: receives the notice, and words for it that complete a sentence about the machine; in its own thread.

    Attributes:
        notice: what the cloud is going to do with the machine; None while nothing is known.
    """

    def __init__(
        self,
        machine: str,
        cloud: str,
        through: SshHost,
        tell: Callable[[Notice, str], None],
    ) -> None:
        self._machine, self._cloud, self._tell = machine, cloud, tell
        self.notice: Notice | None = None
        self._waiting = subprocess.Popen(
            through.command("sh", "-c", _WAIT_FOR_NOTICE, "sh", NOTICE, NO_NOTICES),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the client alone
        )
        threading.Thread(target=self._wait, name="skyward-notice", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._waiting.kill()

    def _wait(self) -> None:
        output = self._waiting.communicate()[0].strip()
        if not output:
            return
        if output == "blind":
            _log.warning(
                "%s cannot receive notices of %s before it is taken away: its firewall cannot match control groups "
                "(xt_cgroup), so its metadata service is closed to everybody.",
                self._machine,
                self._cloud,
            )
            return
        try:
            notice = Notice.read(output)
        except (ValueError, KeyError, TypeError):
            _log.warning("%s got a notice from %s in an unknown form: %s", self._machine, self._cloud, output)
            return
        self.notice = notice
        text = f"will be taken away by {self._cloud} at {notice.at:%Y-%m-%dT%H:%M:%SZ} ({notice.action})"
        _log.warning("%s %s.", self._machine, text)
        self._tell(notice, text)
