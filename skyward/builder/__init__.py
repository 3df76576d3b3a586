"""Building images: from a description to an image that an engine has.

    plan = plan_for(image, store, python="3.11", platform="linux/amd64")   # resolves the base, may pull it
    facts = ensure(plan, store, report, docker_host=...)                   # builds unless the engine has it

`store` is an `EngineImages` (`store.py`); `report` is called with an `Event` for what happens. `ensure` starts no
process when the engine has the image. Ctrl-C ends a build with everything it started.

Read `planning.py` and `ensure.py` first, which use the packages in this order: `files` and `packages` (what goes in),
`base.py` (what it stands on), `site` (indexes and certificates of this machine), `docker` (the build), `registry`.
`sources` reads declarations and scripts. `contents.py` knows what tags stand for; `explain.py` and
`sbom.py` are for the command line.
"""

from skyward.builder.ensure import ensure
from skyward.builder.planning import plan_for, resolve_base
from skyward.builder.store import EngineImages, ImageFacts

__all__ = ["EngineImages", "ImageFacts", "ensure", "plan_for", "resolve_base"]
