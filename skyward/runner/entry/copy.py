"""`python -m ...copy put DESTINATION COUNT` and `... get PATH...`: a node's end of `skyward cp`.

The trees come on standard input, or go to standard output. What is told goes to standard error, a JSON object a line:
`{"total": bytes}`, `{"file": path, "why": text}` for each that is not copied, `{"copied": number}`,
`{"error": sentence}`.
"""

from __future__ import annotations

import json
import sys

from skyward.runner.tree import CopyError, Destination, pack, size_of, unpack


def main() -> int:
    """Receive trees, or send them."""
    action, *words = sys.argv[1:]
    try:
        if action == "put":
            destination, count = words
            into = Destination(destination, several=int(count) > 1)
            _tell(copied=unpack(sys.stdin.buffer, into, _note))
        else:
            _tell(total=size_of(words))
            _tell(copied=pack(words, sys.stdout.buffer, _note))
            sys.stdout.buffer.flush()
    except CopyError as error:
        _tell(error=str(error))
        return 1
    return 0


def _note(file: str, why: str) -> None:
    _tell(file=file, why=why)


def _tell(**about: object) -> None:
    sys.stderr.write(f"{json.dumps(about)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
