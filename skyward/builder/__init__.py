"""Building images: from a description to an image that an engine has.

    plan = plan_for(image, store, python="3.11", platform="linux/amd64")   # resolves the base, may pull it
    facts = ensure(plan, store, report, docker_host=...)                   # builds unless the engine has it

`store` is an `EngineImages` (`store.py`); `report` is called with an `Event` for what happens. `ensure` starts no
process when the engine has the image. Ctrl-C ends a build with everything it started.

Read `plans.py` first, which uses these in this order: `files` and `packages` (what goes in), `base.py` and
`dockerfile.py` (what it stands on), `site` (indexes and certificates of this machine), `docker` (the build),
`registry`. `sources` reads declarations and scripts. `store.py` knows what tags stand for as well; `explain.py` and
`sbom.py` are for the command line.
"""

from skyward.builder.plans import ensure, plan_for, resolve_base
from skyward.builder.store import EngineImages, ImageFacts

__all__ = ["EngineImages", "ImageFacts", "ensure", "plan_for", "resolve_base"]
