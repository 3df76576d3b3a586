"""A Dask program on the nodes of a pool: word counts of Python's own docstrings, module by module.

The `with` block holds plain Dask code: delayed functions, a tree of sums, futures. The plugin has made a cluster of the
nodes and connected this program to it.
"""

from __future__ import annotations

from collections import Counter

from dask import delayed
from provider import pool_options

import skyward as sky

Words = tuple[Counter[str], set[int]]
MODULES = [
    "argparse", "ast", "collections", "email.message", "functools", "inspect", "json", "logging",
    "pathlib", "pickle", "random", "shutil", "statistics", "subprocess", "typing", "unittest.case",
]  # fmt: skip


def words(module: str) -> Words:
    """How often each long word occurs in the documentation of a module, and the node that has counted."""
    import importlib
    import inspect
    import re

    loaded = importlib.import_module(module)
    texts = [inspect.getdoc(value) or "" for _, value in inspect.getmembers(loaded)]
    info = sky.instance_info()
    return Counter(re.findall(r"[a-z]{6,}", " ".join(texts).lower())), {info.node if info else -1}


def merged(left: Words, right: Words) -> Words:
    """Two counts as one."""
    return left[0] + right[0], left[1] | right[1]


def main() -> None:
    options = pool_options(__doc__)
    with sky.ComputePool(plugins=[sky.plugins.dask()], **options) as pool:
        counts = [delayed(words)(module) for module in MODULES]
        while len(counts) > 1:  # a tree, which Dask runs as its parts become ready
            counts = [delayed(merged)(left, right) for left, right in zip(counts[::2], counts[1::2], strict=True)]
        found, nodes = counts[0].compute()

        lengths = pool.dask.map(len, sorted(found))  # and futures, with the same cluster
        longest = pool.dask.submit(max, lengths).result()
        print(f"dashboard: {pool.dask.dashboard_link}")

    common = ", ".join(f"{word} {count}" for word, count in found.most_common(3))
    print(f"{sum(found.values())} words in {len(MODULES)} modules, the longest of {longest} letters: {common}")
    print(f"counted on nodes {sorted(nodes)}")


if __name__ == "__main__":
    main()
