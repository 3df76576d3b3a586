"""Launches a pool's machines: one request per offer until the cloud has room, and the wait until they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skyward.builder.events import Report, note
from skyward.errors import ProviderError
from skyward.providers.cloud.protocol import GONE, Cloud, Instance, Launcher, LaunchRequest, MachineOffer, RefusedError
from skyward.system import time

_RUNNING_WITHIN_S = 300.0
_POLL_S = 1.0
_REPORT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Machines of a pool that are launched together.

    Attributes:
        pool: identifier of the pool.
        nodes: number of machines.
        user_data: gives cloud-init's configuration for machines of an offer.
        longest_s: gives the `longest_s` of machines of an offer.
        number: 0 for the pool's first machines; each replacement has the next one.
    """

    pool: str
    nodes: int
    user_data: Callable[[MachineOffer], str]
    longest_s: Callable[[MachineOffer], float | None] = lambda _: None
    number: int = 0

    def request(self, offer: MachineOffer, attempt: int) -> LaunchRequest:
        """The request for these machines, as the attempt with this number."""
        token = f"skyward-{self.pool}-{attempt}" + (f"-again-{self.number}" if self.number else "")
        return LaunchRequest(
            token=token,
            nodes=self.nodes,
            offer=offer,
            user_data=self.user_data(offer),
            longest_s=self.longest_s(offer),
        )


def launch(
    cloud: Cloud, launcher: Launcher, batch: Batch, offers: Sequence[MachineOffer], report: Report
) -> tuple[MachineOffer, list[Instance]]:
    """Launch machines by the first offer that the cloud has room for.

    Returns:
        The offer, and the machines in node order. They run.

    Raises:
        ProviderError: the cloud has no room for any offer; lists what was tried.
    """
    tried, said = list[str](), dict[str, None]()
    for attempt, offer in enumerate(offers):
        report(note(f"launching {offer.text(batch.nodes)}"))
        ids: Sequence[str] = ()
        try:
            ids = launcher.launch(batch.request(offer, attempt))
            return offer, _wait_running(cloud, batch.pool, ids, report)
        except ProviderError as error:
            if ids:
                cloud.terminate(ids)  # otherwise they would run until the end of the pool
            if not isinstance(error, RefusedError) or error.code not in {*cloud.no_room, GONE}:
                raise
            said[str(error)] = None
            report(note(f"no room for {offer.type.name} ({offer.market}) in {offer.zone}: {error.code}"))
            tried.append(f"  {offer.type.name}  {offer.market}  {offer.zone}  {error.code}")
    raise ProviderError(
        f"{cloud.name} has no room for {batch.nodes} machines in {cloud.region}:\n" + "\n".join([*tried, *said]) + "\n"
        "Try later, another region, other types, or allocation='on-demand'; for limits of the account see its quotas."
    )


def _wait_running(cloud: Cloud, pool: str, ids: Sequence[str], report: Report) -> list[Instance]:
    """Wait until all machines run and have an address.

    Raises:
        RefusedError: one has ended already, for example because the cloud has run out of room.
        ProviderError: they do not run in time.
    """
    began = reported = time.monotonic()
    seen: set[str] = set()
    while True:
        found = {each.id: each for each in cloud.instances(pool)}
        if gone := sorted(seen - set(found)):
            raise RefusedError(f"The machine {gone[0]} ended at once, and is not listed any more.", GONE)
        seen |= found.keys() & set(ids)
        for ident in ids:
            if ident in found and found[ident].state not in ("pending", "running"):
                reason = found[ident].reason or "no reason given"
                raise RefusedError(f"The machine {ident} ended at once: {reason}.", found[ident].code)
        running = [ident for ident in ids if ident in found and found[ident].state == "running"]
        if len(running) == len(ids) and all(found[ident].address for ident in ids):
            return [found[ident] for ident in ids]
        if time.monotonic() - began > _RUNNING_WITHIN_S:
            slow = ", ".join(ident for ident in ids if ident not in running) or "they have no address"
            raise ProviderError(f"Machines do not run {_RUNNING_WITHIN_S:g} s after their launch: {slow}.")
        if time.monotonic() - reported > _REPORT_EVERY_S:
            reported = time.monotonic()
            report(note(f"{len(running)} of {len(ids)} machines run after {reported - began:.0f} s"))
        time.sleep(_POLL_S)
