"""Entry point of the `skyward` command; answers a `skyward build` that has nothing to do from a record.

Finding out that an image exists takes the whole compiler, and most of that time goes into loading it. The result
depends on the files that the run opens and the directories that it lists (declarations, locks, sources, skyward
itself), on files whose existence it checks, on the environment and the interpreter, and on the images that the engine
has under the names of base and image. A run that builds nothing records all of these, as reported by Python's audit
events (PEP 578). While each of them is unchanged, the next run prints the same. In any other case, and in any doubt,
the compiler runs.

A record contains no secrets: it has a hash of the environment, and the times, size and inode of each file.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from collections.abc import Iterable, Sequence

INTERRUPTED = 130  # the exit status after Ctrl-C
_FORMAT = 2
_LATEST_NS = 50_000_000  # a file changed this shortly before a run may also have changed during it
_ENGINE_S = 2.0  # a slower engine is left to the compiler's run, which has messages for this
_OURS = ("_", "OLDPWD", "SHLVL")  # variables that shells change from command to command
_UNWATCHED = ("/dev/", "/proc/", "/sys/")
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_UV_READS = ("lock", "export")  # commands of uv whose inputs are known
Stat = tuple[int, int, int, int]
_watching: _Watch | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a SkywardError becomes a message on standard error."""
    if sys.platform == "win32":
        sys.stderr.write("skyward: it takes Linux or macOS; on Windows run it in the Subsystem for Linux, WSL 2.\n")
        return 2
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["build"]:
            if answered(words):
                return 0
            watch(words)
        from skyward.cli.commands import run

        return run(words)
    except KeyboardInterrupt:  # while modules are imported, before click handles it
        sys.stderr.write("\nskyward: Interrupted.\n")
        return INTERRUPTED


def answered(words: Sequence[str]) -> bool:
    """Print what the last run with these words printed, if nothing has changed since; return whether it did."""
    try:
        with open(_file(words), "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():  # another user's home, as with sudo
                return False
            form, until, about, paths, engine, question, answer, text, used = marshal.loads(file.read())  # noqa: S302 - ours
    except (OSError, ValueError, EOFError, TypeError):  # missing, or partly written
        return False
    if (
        form != _FORMAT
        or time.time() > until
        or about != _about()
        or any(_stat(path) != known for path, known in paths)
    ):
        return False
    if _asked(engine, question) != answer:
        return False
    try:
        for path in used:
            os.utime(path)
    except OSError:  # deleted, as after the image was removed
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # see `skyward.cli.commands.run`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def watch(words: Sequence[str]) -> None:
    """Start recording what this run reads, unless skyward.builder is loaded, whose caches would hide reads."""
    global _watching
    if sys.platform == "linux" and "skyward.builder" not in sys.modules:
        _watching = _Watch(words)
        sys.addaudithook(_note)


def record_unchanged(
    text: str,
    images: Iterable[tuple[str, str]],
    engine: str,
    more: Iterable[str],
    used: Iterable[str],
    until: float = float("inf"),
) -> None:
    """Save what a run that built nothing has read and printed, unless the list of inputs may be incomplete.

    Args:
        text: what it printed.
        images: names of the images that the result depends on, each with its id or one of its digests.
        engine: path of the engine's socket.
        more: files whose existence it checked without opening them.
        used: files to touch in a run that prints the same.
        until: when the record expires, in seconds since the epoch.
    """
    global _watching
    seen, _watching = _watching, None
    if seen is None or seen.starts_processes or seen.engines - {engine}:
        return
    loaded = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    paths = {os.path.abspath(path) for path in (*seen.paths, *loaded, *more) if path}  # noqa: PTH100
    known = [(path, _stat(path)) for path in sorted(paths) if not path.startswith(_UNWATCHED)]
    latest = seen.started_ns - _LATEST_NS
    if any(stat is not None and max(stat[:2]) > latest for _, stat in known):
        return
    question = _question(dict(images))
    answer = _asked(engine, question)
    if answer is None or not all(_has(answer, name, digest) for name, digest in images):
        return
    document = (_FORMAT, until, seen.about, known, engine, question, answer, text, list(used))
    file = _file(seen.words)
    fresh = f"{file}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120
        with open(fresh, "wb") as target:
            target.write(marshal.dumps(document))
        os.replace(fresh, file)  # noqa: PTH105
    except OSError:  # without this cache the next run takes a tenth of a second longer
        return


class _Watch:
    """The inputs that a run has read so far."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.started_ns = time.time_ns()
        self.about = _about()
        self.paths: dict[str, None] = {}
        self.engines: set[str] = set()
        self.starts_processes = False


def _note(event: str, given: tuple[object, ...]) -> None:
    """Handle an audit event (the audit hook)."""
    seen = _watching
    if seen is None:
        return
    if event == "open":
        path, _, flags = given
        if isinstance(path, str) and not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
            seen.paths[path] = None
    elif event in ("os.listdir", "os.scandir"):
        seen.paths[given[0] if isinstance(given[0], str) else "."] = None
    elif event == "socket.connect":
        seen.engines.add(given[1] if isinstance(given[1], str) else "another machine")
    elif event in _PROCESSES:
        seen.starts_processes |= not _is_uv(event, given)


def _is_uv(event: str, given: tuple[object, ...]) -> bool:
    """Return whether this event starts uv to read a project's lock."""
    words = given[1] if event == "subprocess.Popen" else None
    if not isinstance(words, list) or len(words) < 2:
        return False
    return os.path.basename(str(words[0])) == "uv" and words[1] in _UV_READS  # noqa: PTH119


def _file(words: Sequence[str]) -> str:
    """Return the path of the record of a command line."""
    cache = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")  # noqa: PTH111
    if not cache.startswith("/"):
        cache = "/nonexistent"
    about = repr((list(words), os.getcwd(), sys.executable))  # noqa: PTH109
    return f"{cache}/skyward/unchanged/{_hash(about).hex()[:32]}"


def _about() -> bytes:
    """Return a hash of the inputs that a run reads without opening files."""
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _OURS)
    about = repr((variables, sys.version, sys.path, sys.flags, os.getuid()))
    return _hash(about)


def _hash(text: str) -> bytes:
    from _blake2 import blake2b  # `hashlib` loads OpenSSL, which takes longer than everything done here

    return blake2b(text.encode("utf-8", "surrogateescape")).digest()


def _stat(path: str) -> Stat | None:
    """Return the modification times, size and inode of a file or directory; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _question(images: Iterable[str]) -> str:
    """Return the request path that lists an engine's images of these names."""
    import json
    from urllib.parse import quote

    return f"/images/json?filters={quote(json.dumps({'reference': sorted(images)}))}"


def _asked(engine: str, question: str) -> bytes | None:
    """Return the body of an engine's response; None if it does not answer with status 200."""
    from _socket import AF_UNIX, SOCK_STREAM, socket  # `socket` loads `enum`

    try:
        line = socket(AF_UNIX, SOCK_STREAM)
        try:
            line.settimeout(_ENGINE_S)
            line.connect(engine)
            line.sendall(f"GET {question} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            parts = list(iter(lambda: line.recv(1 << 16), b""))
        finally:
            line.close()
    except OSError:
        return None
    head, _, content = b"".join(parts).partition(b"\r\n\r\n")
    return content if head.split(b" ", 2)[1:2] == [b"200"] else None


def _has(answer: bytes, name: str, digest: str) -> bool:
    """Return whether the engine lists an image of that name with that id or digest."""
    import json

    for each in json.loads(answer):
        digests = each.get("RepoDigests") or ()
        if name in (*(each.get("RepoTags") or ()), *digests):
            return digest == each["Id"] or any(known.endswith(f"@{digest}") for known in digests)
    return False
