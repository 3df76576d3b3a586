"""The image compiler: an `Image` and what is known of its base become a `Plan`: Dockerfile text, layers, identity.

Pure: no clock, working directory, network, environment or file is read here; `skyward.build` does the rest.
"""

from skyward.image.compiler import EPOCH, compile, default_base  # noqa: A004 - the room's one verb
from skyward.image.origins import with_origin
from skyward.image.plan import Layer, Plan
from skyward.image.requirements import requirements_file

__all__ = ["EPOCH", "Layer", "Plan", "compile", "default_base", "requirements_file", "with_origin"]
