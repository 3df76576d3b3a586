"""What functions print, as it comes out of the client: asserted on the client's own output, never on return values."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from tests.e2e.conftest import IMAGE, provider_of
from tests.e2e.terminal import Terminal
from tests.printed import Printed

Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def loud(provider_name: str) -> Iterator[sky.ComputePool]:
    """Two nodes, four calls at a time on each, that print."""
    with sky.ComputePool(provider_of(provider_name), nodes=2, image=IMAGE, concurrency=4) as pool:
        yield pool


def node() -> int:
    info = sky.instance_info()
    assert info is not None
    return info.node


def both(text: str) -> None:
    print(f"{text} out {node()}", flush=True)
    print(f"{text} err {node()}", file=sys.stderr, flush=True)


def test_output_names_its_node_and_keeps_its_stream(loud: sky.ComputePool, printed: Printed) -> None:
    """Standard error is labelled as such all the way; it is there before the result is."""
    sky.compute(both)("hello") @ loud
    seen = printed.read()
    assert sorted(seen.out.splitlines()) == ["[0] hello out 0", "[1] hello out 1"]
    assert sorted(seen.err.splitlines()) == ["[0] hello err 0", "[1] hello err 1"]


def test_what_is_printed_comes_before_the_result(loud: sky.ComputePool, printed: Printed) -> None:
    """Every time, unfinished lines of standard output included."""

    @sky.compute
    def say(n: int) -> int:
        print(f"line {n}")
        return n

    for n in range(100):
        assert say(n) >> loud == n
        assert re.fullmatch(rf"\[[01]\] line {n}\n", printed.read().out)


def test_only_the_head_prints(loud: sky.ComputePool, printed: Printed) -> None:
    """`@sky.stdout(only="head")`: standard output of the head alone, everybody's standard error."""
    sky.compute(sky.stdout(only="head")(both))("head") @ loud
    seen = printed.read()
    assert seen.out.splitlines() == ["[0] head out 0"]
    assert sorted(seen.err.splitlines()) == ["[0] head err 0", "[1] head err 1"]


def test_standard_error_of_the_head_only(loud: sky.ComputePool, printed: Printed) -> None:
    """`@sky.stderr` is the same for the other stream; both can be combined."""
    sky.compute(sky.stderr(only="head")(both))("one") @ loud
    seen = printed.read()
    assert len(seen.out.splitlines()) == 2
    assert seen.err.splitlines() == ["[0] one err 0"]
    sky.compute(sky.stderr(only="head")(sky.stdout(only=lambda info: info.node == 1)(both)))("two") @ loud
    seen = printed.read()
    assert seen.out.splitlines() == ["[1] two out 1"]
    assert seen.err.splitlines() == ["[0] two err 0"]


def test_silent(loud: sky.ComputePool, printed: Printed) -> None:
    """Mutes both streams on every node; the next call is heard again, also after an error in the muted one."""

    @sky.compute
    @sky.silent
    def fails() -> None:
        both("unheard")
        raise ValueError("heard")

    sky.compute(sky.silent(both))("unheard") @ loud
    with pytest.raises(ValueError, match="heard"):
        fails() >> loud
    assert tuple(printed.read()) == ("", "")
    sky.compute(both)("again") >> loud
    assert "again out" in printed.read().out


def test_muting_is_per_call_not_per_process(loud: sky.ComputePool, printed: Printed) -> None:
    """Muted and unmuted calls run side by side in one worker; each keeps or loses exactly its own lines."""

    @sky.compute
    def heard(name: str) -> None:
        for n in range(50):
            print(f"heard {name} {n}")
            print(f"heard {name} {n}", file=sys.stderr)
            time.sleep(0.001)

    @sky.compute
    @sky.silent
    def unheard(name: str) -> None:
        for n in range(50):
            print(f"unheard {name} {n}")
            print(f"unheard {name} {n}", file=sys.stderr)
            time.sleep(0.001)

    names = [str(n) for n in range(12)]
    sky.gather(*(call(name) for name in names for call in (heard, unheard))) >> loud
    seen = printed.read()
    for text in seen:
        lines = [re.sub(r"^\[[01]\] ", "", line) for line in text.splitlines()]
        assert sorted(lines) == sorted(f"heard {name} {n}" for name in names for n in range(50))


def test_output_below_python(loud: sky.ComputePool, printed: Printed) -> None:
    """Subprocesses and C code write past Python: their lines arrive as well, on the right stream."""

    @sky.compute
    def shell() -> None:
        subprocess.run(["sh", "-c", "echo from a process; echo its error >&2"], check=True)
        __import__("os").write(1, b"from a descriptor\n")

    shell() >> loud
    out, err = (text.splitlines() for text in printed.until(out="from a descriptor", err="its error"))
    assert {line[4:] for line in out} == {"from a process", "from a descriptor"}
    assert [line[4:] for line in err] == ["its error"]


def test_text_of_all_kinds(loud: sky.ComputePool, printed: Printed) -> None:
    """Multi-byte characters arrive whole, in whatever pieces they were written; bytes too."""
    text = "zażółć gęślą jaźń – 東京 🚀"

    @sky.compute
    def speak(text: str) -> None:
        import os

        print(text)
        for char in text:
            print(char, end="", flush=False)
        print()
        data = f"raw {text}\n".encode()
        for start in range(0, len(data), 3):
            os.write(1, data[start : start + 3])
        sys.stdout.buffer.write(f"bytes {text}\n".encode())
        sys.stdout.flush()

    speak(text) >> loud
    out = printed.until(out=f"raw {text}\n").out.splitlines()
    assert sorted(line[4:] for line in out) == sorted([text, text, f"raw {text}", f"bytes {text}"])


@pytest.mark.alone
@pytest.mark.parametrize("how", ["print", "descriptor"])
def test_many_lines_quickly_without_loss(loud: sky.ComputePool, printed: Printed, how: str) -> None:
    """20,000 lines in a second or so, every one of them, in order."""
    count = 20_000

    @sky.compute
    def flood() -> None:
        import os

        if how == "print":
            for n in range(count):
                print(f"line {n}")
        else:
            with os.fdopen(os.dup(1), "w") as raw:
                for n in range(count):
                    raw.write(f"line {n}\n")

    started = time.monotonic()
    flood() >> loud
    out = printed.until(out=f"line {count - 1}\n").out.splitlines()
    assert time.monotonic() - started < 30
    assert [line[4:] for line in out] == [f"line {n}" for n in range(count)]


BARS = """
import sys, time
import skyward as sky

@sky.compute
def work():
    node = sky.instance_info().node
    for n in range(21):
        sys.stderr.write(f"\\r{n:3}/20 of node {node} |{'#' * n:20}| and more than fifty columns wide")
        sys.stderr.flush()
        time.sleep(0.05)
        if n == 10:
            print(f"half of {node}")
    sys.stderr.write("\\n")

with sky.ComputePool(sky.Local(), nodes=4) as pool:
    work() @ pool
    pool.map(sky.compute(time.sleep), [0.15] * 40)
    print("the end")
"""


@pytest.mark.parametrize(("columns", "env"), [(80, {}), (50, {"NO_COLOR": "1"})], ids=["80", "50"])
def test_progress_of_nodes_on_a_terminal(provider_name: str, tmp_path: Path, columns: int, env: Any) -> None:
    """A row of the map's, no wider than the terminal; lines above it, of bars of nodes the last state; no row stays."""
    if provider_name == "docker":
        pytest.skip("what is tried is the client")
    program = tmp_path / "bars.py"
    program.write_text(BARS)
    with Terminal([sys.executable, str(program)], columns=columns, **env) as terminal:
        assert terminal.wait() == 0
        text = terminal.shown.decode()
    screens = list(states(text))
    rows = [screen[-1] for screen in screens if screen and "sleep(): " in screen[-1]]
    assert any(" left" in row for row in rows)
    assert max(map(len, rows)) < columns
    lines = screens[-1]
    assert lines[-1] == "the end"
    assert sorted(line for line in lines if "half" in line) == [f"[{n}] half of {n}" for n in range(4)]
    assert sum("20/20" in line for line in lines) == 4
    assert not [line for line in lines if "19/20" in line or "sleep()" in line]
    assert "\x1b[3" not in text


def states(text: str) -> Iterator[list[str]]:
    """What a terminal shows each time a row is about to be cleared, and in the end; rows are never wrapped here."""
    lines, at = [""], 0
    for token in re.findall(r"\r|\n|\x1b\[1A|\x1b\[2K|[^\r\n\x1b]+", re.sub(r"\x1b\[\?25[hl]", "", text)):
        if token == "\n":
            at += 1
            lines += [""] * (at == len(lines))
        elif token == "\x1b[1A":
            at -= 1
        elif token == "\x1b[2K":
            yield [line for line in lines if line]
            lines[at] = ""
        elif token != "\r":
            lines[at] += token
    yield [line for line in lines if line]


def test_the_last_words_before_the_pool_ends(script: Script, provider_name: str) -> None:
    """Lines written below Python just before the pool is left are not lost with it."""
    program = script(
        f"""
        import subprocess, sys
        import skyward as sky

        @sky.compute
        def talk():
            print("in Python")
            subprocess.run(["sh", "-c", "for i in $(seq 2000); do echo line $i; done; printf 'the end'"], check=True)

        with sky.ComputePool(sky.{"Docker" if provider_name == "docker" else "Local"}()) as pool:
            talk() >> pool
        print("after the pool")
        """
    )
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    *lines, last, after = out.splitlines()
    assert after == "after the pool"
    assert last == "[0] the end"
    assert lines[0] == "[0] in Python" or "[0] in Python" in lines
    assert [line for line in lines if "line" in line] == [f"[0] line {n}" for n in range(1, 2001)]


def test_quiet(script: Script, provider_name: str) -> None:
    """`display="quiet"` shows neither progress nor output."""
    program = script(
        f"""
        import sys
        import skyward as sky

        @sky.compute
        def talk():
            print("unheard")
            print("unheard", file=sys.stderr)

        with sky.ComputePool(sky.{"Docker" if provider_name == "docker" else "Local"}(), display="quiet") as pool:
            talk() >> pool
        """
    )
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    assert out == ""
    assert "unheard" not in err
    assert "skyward:" not in err
