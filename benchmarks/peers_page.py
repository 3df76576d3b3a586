"""The table and the plot of docs/performance.md, made from benchmarks/results/peers.json.

python -m benchmarks.peers_page
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE, PLOT = ROOT / "docs/performance.md", ROOT / "docs/figures/peers.svg"
# What Ray's release tests took for the same on one node, as its source keeps it (release/perf_metrics/scalability).
RAY_S = {
    "10000_arguments_s": 17.2,
    "3000_results_s": 5.7,
    "10000_results_got_s": 23.5,
    "1000000_calls_s": 184.4,
}
LIMITS = {
    "10000_arguments_s": "10,000 arguments to one call",
    "3000_results_s": "3,000 results of one call",
    "10000_results_got_s": "10,000 results got",
    "1000000_calls_s": "1,000,000 calls queued and answered",
    "1000000_items_mapped_s": "1,000,000 items of `pool.map`",
}


TITLES = {"multiprocessing": "mp.Pool", "concurrent.futures": "futures", "ray": "Ray", "dask": "Dask"}


class Figure(NamedTuple):
    """One row of the table."""

    key: str
    title: str
    unit: str
    text: Callable[[float], str]


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.2g}"


FIGURES = (
    Figure("p50_us", "Round trip of a call that does nothing, median", "µs", _rounded),
    Figure("p99_us", "The same, 99th percentile", "µs", _rounded),
    Figure("calls_per_s", "10,000 such calls, each sent by itself", "per second", _rounded),
    Figure("calls_per_s_of_100000", "100,000 of them", "per second", _rounded),
    Figure("map_per_s", "100,000 items of `map`", "per second", _rounded),
    Figure("echo_ms", "64 MiB there and back", "ms", _rounded),
    Figure("first_result_s", "Start of the program to first result", "s", lambda value: f"{value:.2f}"),
    Figure("idle_mb", "Memory of all its processes, idle", "MB", _rounded),
)


def table(found: dict[str, Any]) -> str:
    """The figures, a column for each of the tools."""
    figures = found["figures"]
    lines = [f"| | {' | '.join(TITLES.get(name, name) for name in figures)} |", "|---" * (len(figures) + 1) + "|"]
    for figure in FIGURES:
        cells = [figure.text(each[figure.key]) if figure.key in each else "" for each in figures.values()]
        lines.append(f"| {figure.title}, {figure.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits(found: dict[str, Any]) -> str:
    """Skyward's seconds beside those that Ray publishes."""
    rows = [
        f"| {title} | {found['limits'][key]:.2f} s | {f'{RAY_S[key]} s' if key in RAY_S else ''} |"
        for key, title in LIMITS.items()
    ]
    return "\n".join(["| | skyward, here | Ray, as published |", "|---|---|---|", *rows])


def conditions(found: dict[str, Any]) -> str:
    """The machine and the versions."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    loads = found["load"]
    return (
        f"Python {found['python']}, {versions}; {found['cores']} cores, "
        f"{found['rounds']} round{'s' * (found['rounds'] > 1)}; "
        f"load of the machine before each program, by others too: {min(loads):.1f} to {max(loads):.1f}."
    )


def plot(found: dict[str, Any]) -> str:
    """Bars of one panel for each figure, with a logarithmic scale; readable on light, dark and narrow pages."""
    width, left, bar, gap = 440, 80, 14, 34
    parts, top = list[str](), 8
    for figure in FIGURES:
        values = {name: each[figure.key] for name, each in found["figures"].items() if figure.key in each}
        top += 18
        parts.append(f'<text x="0" y="{top}" class="title">{figure.title.replace("`", "")} ({figure.unit})</text>')
        top += 8
        for name, value in values.items():
            length = (width - left - 70) * _share(value, list(values.values()))
            parts.append(f'<text x="{left - 8}" y="{top + 11}" text-anchor="end">{TITLES.get(name, name)}</text>')
            parts.append(
                f'<rect x="{left}" y="{top}" width="{length:.1f}" height="{bar - 2}" rx="2" '
                f'fill="{"#4f6ef7" if name == "skyward" else "#9aa3b5"}"/>'
            )
            parts.append(f'<text x="{left + length + 6:.1f}" y="{top + 11}">{figure.text(value)}</text>')
            top += bar
        top += gap - 18
    style = "text{font:12px sans-serif;fill:#808692}.title{font-weight:bold}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {top}" role="img">'
        f"<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _share(value: float, values: list[float]) -> float:
    """How long a bar is: the tenth part of the least is nothing, the greatest is all."""
    from math import log10

    least, most = log10(min(values) / 10), log10(max(values))
    return (log10(value) - least) / (most - least)


def written(page: str, found: dict[str, Any]) -> str:
    """The page with these figures between its marks."""
    for name, text in (("table", table(found)), ("limits", limits(found)), ("conditions", conditions(found))):
        before, mark, rest = page.partition(f"<!-- {name}, by benchmarks/peers_page.py -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{mark}\n{text}\n\n{end}{after}"
    return page


def main() -> None:
    found = json.loads((ROOT / "benchmarks/results/peers.json").read_text(encoding="utf-8"))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    PLOT.parent.mkdir(exist_ok=True)
    PLOT.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
