"""`python -m skyward.plugins._ray_start start ...`: Ray's command line, which ends when its standard input does.

So no Ray outlives the worker process that has started it, however that ends. Ray's own processes end with this one.
"""

from __future__ import annotations

import os
import sys
import threading


def main() -> None:
    """Run `ray` with the parameters of this program."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    from ray.scripts.scripts import main as command_line

    sys.argv[0] = "ray"
    command_line()


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
