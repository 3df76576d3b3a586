"""The image compiler: turns an `Image` and facts about its base into a `Plan`: Dockerfile text, layers, identity.

It is pure: it reads no clock, working directory, network, environment or file; `skyward.builder` does the rest.
"""

from skyward.image.compiler import EPOCH, check_python, compile, default_base  # noqa: A004 - the one verb
from skyward.image.lock import Lock, Package, requirements_file
from skyward.image.plan import BaseFacts, Copied, Layer, Plan, origin_of, with_origin
from skyward.image.steps import TIME

__all__ = [
    "EPOCH",
    "TIME",
    "BaseFacts",
    "Copied",
    "Layer",
    "Lock",
    "Package",
    "Plan",
    "check_python",
    "compile",
    "default_base",
    "origin_of",
    "requirements_file",
    "with_origin",
]
