"""What a pool asks of rented machines, and what a machine can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Market = Literal["spot", "on-demand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """An instance type.

    Attributes:
        name: such as "g5.xlarge".
        cpus: its virtual processors.
        memory_gb: its memory in GiB.
        platform: "linux/amd64" or "linux/arm64".
        gpus: how many NVIDIA GPUs it has.
    """

    name: str
    cpus: int
    memory_gb: float
    platform: str
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to get a pool's machines: all of one type, in one zone, in one market.

    Attributes:
        type: the instance type.
        market: "spot" is cheaper and can be taken away two minutes after a notice.
        zone: availability zone, such as "us-east-1a".
        hourly: price of one machine in USD per hour; None where AWS does not tell.
    """

    type: MachineType
    market: Market
    zone: str
    hourly: float | None

    def cost(self, nodes: int) -> float | None:
        """USD per hour for so many machines."""
        return None if self.hourly is None else self.hourly * nodes

    def text(self, nodes: int) -> str:
        """It in words, with its price for so many machines."""
        cost = self.cost(nodes)
        price = "at a price that AWS does not tell" if cost is None else f"for {cost:.3f} USD per hour"
        return f"{nodes} x {self.type.name} ({self.market}) in {self.zone} {price}"
