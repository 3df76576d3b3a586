"""The image compiler: an `Image` and what is known of its base become a `Plan`: Dockerfile text, layers, identity.

Pure: no clock, working directory, network, environment or file is read here; `skyward.builder` does the rest.
"""

from skyward.image.compiler import EPOCH, check_python, compile, default_base, settled  # noqa: A004 - the one verb
from skyward.image.lock import Lock, Package, requirements_file
from skyward.image.plan import BaseBuild, BaseFacts, Copied, Interpreter, Layer, Plan, with_origin
from skyward.image.steps import TIME

__all__ = [
    "EPOCH",
    "TIME",
    "BaseBuild",
    "BaseFacts",
    "Copied",
    "Interpreter",
    "Layer",
    "Lock",
    "Package",
    "Plan",
    "check_python",
    "compile",
    "default_base",
    "requirements_file",
    "settled",
    "with_origin",
]
