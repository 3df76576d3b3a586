"""What the heir of a pool at AWS does: `python -m skyward.providers.aws.heir POOL REGION`.

The pool's machines would end by themselves some minutes after their client (see boot.py), but a security group cannot.
"""

from __future__ import annotations

import sys

from skyward.providers.aws import estate
from skyward.providers.aws.api import Api
from skyward.providers.heir import inherit
from skyward.providers.rundir import sweep_orphans


def main(pool: str, region: str) -> int:
    """Clear the pool when its client has died, and remove the keys that the client held."""
    api = Api(region)

    def clear() -> None:
        estate.clear(api, pool)
        sweep_orphans()

    return inherit(clear)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
