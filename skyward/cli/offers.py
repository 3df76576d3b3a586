"""`skyward offers`: shows what a pool would rent and at what cost, by the same rules as pools. Nothing is launched.

With `--json` standard output has one object per line and nothing else; each has `event` and `provider`:

- `offer`, in the order in which a pool tries them: `text`, `nodes`, `machine`, `market`, `zone` ("" if nothing is
  rented), `hourly_cost`: USD per hour for all machines together (null: unknown), `hours`: how long the budget lasts
  (null: no budget).
- `error`: a provider that offers nothing or cannot be queried: `kind` (the exception's name), `message`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from skyward._pool import config
from skyward.cli.output import Row, say_error, show_rows
from skyward.errors import ProviderError
from skyward.model.image_fields import platform_of
from skyward.model.spec import Accelerator
from skyward.providers.at import provider_at
from skyward.providers.base import PoolRequest

UNKNOWN = 6  # exit status if a provider offers nothing: that of provider errors
_SHOWN = 10


def _figure(value: float | None, form: str) -> str:
    return "?" if value is None else format(value, form)


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "PROVIDER": lambda offer: str(offer["provider"]),
    "MACHINES": lambda offer: f"{offer['nodes']} x {offer['machine']}" if offer["machine"] else str(offer["text"]),
    "MARKET": lambda offer: str(offer["market"]),
    "ZONE": lambda offer: str(offer["zone"]),
    "USD/HOUR": lambda offer: _figure(offer["hourly_cost"], ".3f"),
    "USD/DAY": lambda offer: _figure(offer["hourly_cost"] and 24 * offer["hourly_cost"], ".2f"),
}
_LASTS: dict[str, Callable[[Row], str]] = {
    "BUDGET LASTS": lambda offer: "?" if offer["hours"] is None else f"{offer['hours']:.1f} h",
}


@click.command()
@click.option("--at", "names", multiple=True, default=("aws",), metavar="PLACE", show_default=True,
              help="What is offered there, such as aws://us-east-1; repeat it to compare.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="How many machines.")
@click.option("--accelerator", metavar="GPU", help='GPUs of each: "A100", "A100:4".')
@click.option("--cpu", type=float, help="CPUs that each has at least.")
@click.option("--memory", metavar="SIZE", help='Memory that each has at least: "32GB".')
@click.option("--machine", metavar="TYPE", help="The one type to rent, by the provider's name.")
@click.option("--architecture", metavar="NAME", help='"x86_64" or "arm64"; by default this machine\'s.')
@click.option("--allocation", metavar="HOW", help='"spot-if-available" (the default), "spot", "on-demand", "cheapest".')
@click.option("--max-hourly-cost", type=float, metavar="USD", help="Limit per hour for all machines together.")
@click.option("--budget", type=float, metavar="USD", help="Also say how long this lasts.")
@click.option("--all", "everything", is_flag=True, help=f"All offers, and not the first {_SHOWN} of each provider.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
def command(
    names: Sequence[str],
    nodes: int,
    accelerator: str | None,
    cpu: float | None,
    memory: str | None,
    machine: str | None,
    architecture: str | None,
    allocation: str | None,
    max_hourly_cost: float | None,
    budget: float | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Show what a pool would rent, and what that would cost.

    Nothing is launched. The first offer is what a pool with the same parameters tries first; the others follow
    where there is no room. Prices are those of now, in USD per hour. Exit status 6 if a provider offers nothing.
    """
    request = PoolRequest(
        pool_id="offers",
        nodes=nodes,
        accelerator=Accelerator.of(accelerator),
        cpus=config.positive("cpu", cpu),
        memory_gb=config.memory_of(memory),
        platform=platform_of(architecture),
        machine=machine,
        allocation=allocation,
        max_hourly_cost=config.positive("max_hourly_cost", max_hourly_cost),
        budget=config.positive("budget", budget),
    )
    providers = [(name, provider_at(name)) for name in names]
    for _, provider in providers:
        provider.check(request)
    found, status = list[dict[str, Any]](), 0
    for name, provider in providers:
        try:
            offers = provider.offers(request)
        except ProviderError as error:
            status = UNKNOWN
            if as_json:
                say_error(error, provider=name)
            else:
                click.echo(f"{name}: {error}", err=True)
            continue
        for offer in offers if everything or as_json else offers[:_SHOWN]:
            hours = budget / offer.hourly_cost if budget is not None and offer.hourly_cost else None
            found.append({"event": "offer", "provider": name, **asdict(offer), "nodes": nodes, "hours": hours})
    if found:
        show_rows(found, _COLUMNS | (_LASTS if budget else {}), as_json=as_json)
    return status
