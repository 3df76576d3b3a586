"""Several calls at once, results as they arrive, and a generator whose items arrive while it runs.

The data is something every node has: the source files of Python's standard library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from provider import pool_options

import skyward as sky

PACKAGES = ["asyncio", "email", "http", "importlib", "json", "logging", "sqlite3", "unittest", "xml"]


@sky.compute
def definitions(package: str) -> tuple[str, int, int]:
    """How many functions and classes a package of the standard library defines."""
    import ast
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    kinds: Counter[type] = Counter()
    for file in Path(spec.origin).parent.rglob("*.py"):
        kinds.update(type(item) for item in ast.walk(ast.parse(file.read_bytes())))
    return package, kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef], kinds[ast.ClassDef]


@sky.compute
def longest_files(count: int) -> Iterator[tuple[str, int]]:
    """The longest modules of the standard library, the longest first; a generator: items are sent as they are made."""
    import os
    from pathlib import Path

    sizes = {file.name: file.stat().st_size for file in Path(os.__file__).parent.glob("*.py")}
    for name in sorted(sizes, key=lambda name: -sizes[name])[:count]:
        yield name, sizes[name]


def main() -> None:
    with sky.ComputePool(**pool_options(__doc__)) as pool:
        # two calls, or any number known when the program is written: a tuple, in call order
        json, email = (definitions("json") & definitions("email")) >> pool
        print(f"{json[0]} has {json[1]} functions, {email[0]} has {email[1]}")

        # any number: they run at once, as far as there are slots; here each result is shown when it is ready
        calls = [definitions(package) for package in PACKAGES]
        for package, functions, classes in sky.gather(*calls, stream=True, ordered=False) >> pool:
            print(f"{package:<10} {functions:>5} functions {classes:>4} classes")

        # a generator runs on its node while its items are used here; leaving the loop ends it there
        for name, size in longest_files(100) >> pool:
            if size < 80_000:
                break
            print(f"{name} has {size:,} bytes")


if __name__ == "__main__":
    main()
