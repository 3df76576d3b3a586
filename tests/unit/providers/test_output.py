from collections.abc import Iterator

import pytest

from skyward.errors import EngineError, NodeStartError
from skyward.nodes.node import NodeOutput, exit_of, start_failure

_READY = b'skyward-ready {"agent": "unix:agent.sock", "workers": ["unix:w0.sock", "tcp:127.0.0.1:5"]}\n'


def test_an_announcement_in_pieces_is_one() -> None:
    """Chunks end anywhere; what comes before the announcement on the same line belongs to the other stream."""
    output = NodeOutput([b"one\ntw", b"o" + _READY[:20], _READY[20:], b"three"], "n")
    announcement = output.wait_announcement(5)
    assert announcement is not None
    assert announcement.workers == ("unix:w0.sock", "tcp:127.0.0.1:5")
    output.join(60)
    assert output.tail == "one\ntwo\nthree"


def test_only_the_last_lines_are_kept() -> None:
    """A node may print without end: forty lines are kept, none longer than a screenful."""
    output = NodeOutput((b"x" * 10_000 + b"%d\n" % n for n in range(100)), "n")
    output.join(60)
    lines = output.tail.splitlines()
    assert len(lines) == 40
    assert lines[-1].endswith("x99")
    assert len(lines[-1]) == 2000


@pytest.mark.parametrize("line", [b"skyward-ready nonsense\n", b"skyward-ready {}\n"])
def test_announcements_of_another_protocol_are_an_error(line: bytes) -> None:
    """A runner this client does not understand is told from a silent one."""
    with pytest.raises(NodeStartError, match="announced itself"):
        NodeOutput([line], "n").wait_announcement(5)


def test_an_engine_that_breaks_off_is_an_error() -> None:
    """The error met while reading reaches who waits for the announcement."""

    def chunks() -> Iterator[bytes]:
        yield b"x\n"
        raise EngineError("the engine is gone")

    with pytest.raises(EngineError, match="the engine is gone"):
        NodeOutput(chunks(), "n").wait_announcement(5)


@pytest.mark.parametrize(
    ("code", "oom", "signal", "text"),
    [
        (0, False, None, "ended with exit status 0"),
        (3, False, None, "ended with exit status 3"),
        (139, False, 11, "was killed (SIGSEGV)"),
        (255, False, None, "ended with exit status 255"),
        (137, True, 9, "was killed by the kernel because it used more memory than it may (out of memory)"),
    ],
)
def test_ends_in_words(code: int, oom: bool, signal: int | None, text: str) -> None:
    """Statuses above 128 are signals where there is such a signal; memory is named as the reason."""
    ended = exit_of(code, oom=oom)
    assert (ended.code, ended.signal, ended.oom, ended.text) == (code, signal, oom, text)


def test_failures_to_start_are_sentences() -> None:
    """They say who, how it ended or how long it was waited for, and the last lines."""
    assert str(start_failure("Node 1", exit_of(2), 9, "a\nb")) == (
        "Node 1 ended with exit status 2 before it was ready. Its last lines:\na\nb"
    )
    assert str(start_failure("Node 1", None, 9, "")) == (
        "Node 1 was not ready within 9 s and still runs. It printed nothing."
    )
