"""`skyward offers`: shows what a pool would rent and at what cost, by the same rules as pools. Nothing is launched.

With `--json` standard output has one object per line and nothing else; each has `event` and `provider`:

- `offer`, in the order in which a pool tries them: `text`, `nodes`, `machine`, `market`, `zone` ("" if nothing is
  rented), `hourly_cost`: USD per hour for all machines together (null: unknown), `hours`: how long the budget lasts
  (null: no budget).
- `error`: a provider that offers nothing or cannot be queried: `kind` (the exception's name), `message`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from skyward._pool import config
from skyward.cli.output import say_error, show_table
from skyward.errors import ProviderError
from skyward.model.image_fields import platform_of
from skyward.model.spec import Accelerator
from skyward.providers.at import provider_at
from skyward.providers.base import Offer, PoolRequest

UNKNOWN = 6  # exit status if a provider offers nothing: that of provider errors
_SHOWN = 10


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
    found: list[tuple[str, Offer]] = []
    failures: list[tuple[str, ProviderError]] = []
    providers = [(name, provider_at(name)) for name in names]
    for _, provider in providers:
        provider.check(request)
    for name, provider in providers:
        try:
            offers = provider.offers(request)
        except ProviderError as error:
            failures.append((name, error))
            continue
        found += [(name, offer) for offer in (offers if everything or as_json else offers[:_SHOWN])]
    (_say_json if as_json else _say)(found, failures, nodes, budget)
    return UNKNOWN if failures else 0


def _say_json(
    found: Sequence[tuple[str, Offer]], failures: Sequence[tuple[str, ProviderError]], nodes: int, budget: float | None
) -> None:
    for name, offer in found:
        told = {**asdict(offer), "nodes": nodes, "hours": _hours(offer, budget)}
        click.echo(json.dumps({"event": "offer", "provider": name, **told}))
    for name, error in failures:
        say_error(error, provider=name)


def _say(
    found: Sequence[tuple[str, Offer]], failures: Sequence[tuple[str, ProviderError]], nodes: int, budget: float | None
) -> None:
    for name, error in failures:
        click.echo(f"{name}: {error}", err=True)
    if not found:
        return
    heading = ["PROVIDER", "MACHINES", "MARKET", "ZONE", "USD/HOUR", "USD/DAY", *(["BUDGET LASTS"] if budget else [])]
    rows = [heading]
    for name, offer in found:
        cost, hours = offer.hourly_cost, _hours(offer, budget)
        what = f"{nodes} x {offer.machine}" if offer.machine else offer.text
        prices = ["?", "?"] if cost is None else [f"{cost:.3f}", f"{24 * cost:.2f}"]
        lasts = [] if budget is None else ["?" if hours is None else f"{hours:.1f} h"]
        rows.append([name, what, offer.market, offer.zone, *prices, *lasts])
    show_table(rows)


def _hours(offer: Offer, budget: float | None) -> float | None:
    """Return how many hours of an offer a budget pays for; None without budget or price."""
    return budget / offer.hourly_cost if budget is not None and offer.hourly_cost else None
