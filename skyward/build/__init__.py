"""The effects of images: from a description to an image that an engine has.

    plan = plan_for(image, store, python="3.11", platform="linux/amd64")   # resolves the base, may pull it
    tag = ensure(plan, store, report, docker_host=...)                     # builds unless the engine has it

`store` is any `ImageStore`: what the engine answers about images. `report` is called with an `Event` for what
happens.
`ensure` starts no process when the engine has the image: it asks `store.inspect(plan.tag)` and returns the tag.
Ctrl-C ends a build with everything it started.
"""

from skyward.build.base import plan_for, resolve_base
from skyward.build.ensure import ensure
from skyward.build.store import ImageFacts, ImageStore

__all__ = ["ImageFacts", "ImageStore", "ensure", "plan_for", "resolve_base"]
