"""`python -m skyward.plugins._dask_scheduler`: Dask's scheduler, until standard input ends.

Its order comes as a line of JSON on standard input, so that the key is on no command line and in no environment:
`host`, `port`, `identity`. It answers "ready", or a sentence that says why it cannot be.
"""

from __future__ import annotations

import asyncio
import errno
import json
import sys
import time
from typing import Any

from skyward.plugins._dask_node import quieten, security

_BUSY_S = 10.0  # for the port of a scheduler before this one to be free
_PAUSE_S = 0.1


async def serve(order: dict[str, Any]) -> None:
    """Run it, and another one if a client shuts it down."""
    from distributed import Scheduler

    quieten()
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    said = False
    deadline = time.monotonic() + _BUSY_S
    while not ended.done():
        scheduler = Scheduler(
            host=order["host"],
            port=order["port"],
            protocol="tls",
            security=security(order["identity"]),
            dashboard_address="127.0.0.1:0",
        )
        try:
            await scheduler
        except OSError as error:
            await scheduler.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            await asyncio.wait({ended}, timeout=_PAUSE_S)
            continue
        if not said:
            _answer("ready")
            said = True
        finished = asyncio.ensure_future(scheduler.finished())
        await asyncio.wait({ended, finished}, return_when=asyncio.FIRST_COMPLETED)
        await scheduler.close()


def _answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Read the order, and serve; the exit status is 1 if that was not possible."""
    order = json.loads(sys.stdin.readline())
    try:
        asyncio.run(serve(order))
    except OSError as error:
        hint = (
            " Another plugin of this pool may listen on it: list dask() first."
            if error.errno == errno.EADDRINUSE
            else ""
        )
        _answer(f"{error.strerror or error}.{hint}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
