"""`skyward doctor --gpu` for a checkout: what pools do with the GPU of this machine, as a table."""

from __future__ import annotations

import sys

from skyward.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["doctor", "--gpu", *sys.argv[1:]]))
