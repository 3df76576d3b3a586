"""What it costs at each call to see that nothing which travels with a function has changed; as JSON, in microseconds.

python benchmarks/changes.py
"""

from __future__ import annotations

import json
import sys
import timeit
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skyward._pool.code.functions import Functions

ROUNDS, CALLS = 15, 20_000


def cost_us(fn: Any) -> float:
    """Of one look-up of a function that is known: the least of several rounds, in microseconds."""
    functions = Functions()
    functions.get(fn)
    took_s = min(timeit.repeat(lambda: functions.get(fn), repeat=ROUNDS, number=CALLS))
    return round(took_s / CALLS * 1e6, 2)


def using(count: int, value: str) -> Any:
    """A function of `__main__` that uses so many globals."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number in range(count):
        exec(value.format(name=f"g{number}", number=number), names)
    exec("def f(): return (" + "".join(f"g{number}," for number in range(count)) + ")", names)
    return names["f"]


def main() -> None:
    """Print the figures."""
    figures = {f"{count} globals, numbers": cost_us(using(count, "{name} = {number}")) for count in (0, 5, 50)}
    for count in (5, 50):
        figures[f"{count} globals, functions"] = cost_us(using(count, "def {name}(): return {number}"))
        figures[f"{count} globals, lists of 10"] = cost_us(using(count, "{name} = list(range(10))"))
    with TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for count in (1, 50):
            for number in range(count):
                Path(folder, f"local_{count}_{number}.py").write_text("def f(): pass\n")
            imports = "".join(f"import local_{count}_{number}\n" for number in range(count))
            Path(folder, f"top_{count}.py").write_text(f"{imports}def f(): pass\n")
            module = __import__(f"top_{count}")
            figures[f"in a module that imports {count}"] = cost_us(module.f)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
