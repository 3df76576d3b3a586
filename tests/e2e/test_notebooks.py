"""Pools in the cells of real kernels: code that changes, output, progress, interrupts, restarts; the examples."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT
from tests.e2e.kernels import Kernel, wait_until_printed

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # of the kernel's client, about its own connection
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
BEGIN = """
import os, sys
sys.path.insert(0, {folder!r})
import skyward as sky
%load_ext autoreload
%autoreload 2

def write(text, second):
    path = os.path.join({folder!r}, "module_of_notebook.py")
    with open(path, "w") as file:
        file.write("import skyward as sky\\n" + text)
    os.utime(path, (1_000_000_000 + second,) * 2)

write("@sky.compute\\ndef g(): return 1\\ndef h(): return 1\\n", 0)
"""


def test_redefined_functions_and_reloaded_modules(tmp_path: Path) -> None:
    """Helpers of later cells, autoreload in both of its ways, and `await`; the client and the node always agree."""
    cells = [
        BEGIN.format(folder=str(tmp_path)),
        "import module_of_notebook\nfrom module_of_notebook import g",
        "def helper(): return 'old'\n@sky.compute\ndef f(): return helper(), module_of_notebook.h()",
        "pool = sky.ComputePool(sky.Local(), display='quiet').open()",
        "print(f() >> pool, g() >> pool)",
        "def helper(): return 'new'",
        "print(f() >> pool, g() >> pool)",
        "write('@sky.compute\\ndef g(): return 22\\ndef h(): return 22\\n', 10)",
        "print(f() >> pool, g() >> pool, await (g() > pool), g.local())",
        "write('X = [1]\\n@sky.compute\\ndef g(): return 333\\ndef h(): return 333\\n', 20)",
        "print(f() >> pool, g() >> pool, await (g() > pool), g.local())",
        "pool.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])

    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()

    printed = [
        "".join(out["text"] for out in cell.outputs if out.get("name") == "stdout")
        for cell in notebook.cells
        if cell.outputs
    ]
    assert printed == [
        "('old', 1) 1\n",
        "('new', 1) 1\n",
        "('new', 22) 22 22 22\n",
        "('new', 333) 333 333 333\n",
    ]


FUNCTIONS = """
import time
import skyward as sky

@sky.compute
def late(*seconds):
    for each in seconds:
        time.sleep(each)
        print("after", each, flush=True)
    return sum(seconds)

@sky.compute
def broken():
    return 1 / 0

pool = sky.ComputePool(sky.Local()).open()
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """A kernel with an open pool of one node."""
    with Kernel() as kernel:
        kernel.run(FUNCTIONS)
        yield kernel
        kernel.run("pool.close()")


def test_output_goes_to_the_cell_that_called(kernel: Kernel) -> None:
    """Also while another cell runs, and when yet another one asks for the result."""
    first = kernel.run("future = late(0.1, 0.4, 0.4) > pool")
    second = kernel.run("print('mine'); late(0.2) >> pool")  # waits for the node, which has one call at a time
    third = kernel.run("future.result()")

    assert first.printed() == "[0] after 0.1\n[0] after 0.4\n[0] after 0.4\n"
    assert second.printed() == "mine\n[0] after 0.2\n"
    assert (third.printed(), third.result) == ("", "0.9")


def test_tracebacks_are_those_of_the_node_and_of_the_cell(kernel: Kernel) -> None:
    """The way through this library is left out, but for the line that raises."""
    for code in ("broken() >> pool", "(broken() > pool).result()", "pool.map(broken.fn.__call__, [])\nbroken() @ pool"):
        traceback = kernel.run(code, fails=True).traceback
        assert re.search(r"Cell In\[\d+\], line 13, in broken\n", traceback), traceback
        assert "ipykernel_" not in traceback
        assert "ZeroDivisionError: division by zero\nraised by broken() on node 0" in traceback
        assert traceback.count("/skyward/") <= 1, traceback


@pytest.mark.parametrize(
    "code",
    [
        "late(0, 600) >> pool",
        "await (late(0, 600) > pool)",
        "pool.map(late, [0, 600])",
        "for total in sky.gather(late(0, 0), late(600), stream=True) >> pool: print(total)",
    ],
)
def test_an_interrupt_ends_whatever_waits(kernel: Kernel, code: str) -> None:
    """At once: a call, an `await`, a map, and a stream. The node is free for the next call."""
    cell = kernel.send(code)
    wait_until_printed(cell, "after 0\n")
    time.sleep(0.1)
    kernel.manager.interrupt_kernel()

    assert cell.idle.wait(60)
    assert cell.traceback.rstrip().endswith(("KeyboardInterrupt:", "CancelledError:"))
    assert cell.traceback.count("/skyward/") <= 1, cell.traceback
    assert kernel.run("late(0) >> pool").printed() == "[0] after 0\n"


@pytest.mark.parametrize(("end", "ttl"), [("restart", 300), ("kill", 6)])
def test_nothing_is_left_of_a_kernel_that_ends(end: str, ttl: int, containers: Callable[[str], list[Any]]) -> None:
    """Restarted, it closes its pools; killed, its nodes end by themselves after their `ttl`."""
    with Kernel() as kernel:
        kernel.run("import skyward as sky")
        cell = kernel.run(f"pool = sky.ComputePool(sky.Docker(), ttl={ttl}).open(); print(pool.id)")
        pool = cell.printed().strip()
        assert len(containers(pool)) == 1
        kernel.manager.restart_kernel(now=end == "kill")
        ended = time.monotonic()
        while containers(pool):
            assert time.monotonic() - ended < 30, f"containers of pool {pool} are left"
            time.sleep(0.1)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_examples_run_as_they_stand(path: Path) -> None:
    """On containers, in a kernel of their own; no cell raises, and the last lines hold what the text promises."""
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "store it without outputs"

    NotebookClient(notebook, timeout=500, kernel_name="python3").execute()

    texts = [str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert ("LogisticRegression" if path.stem.startswith("01") else "'1240'") in texts[-2]
