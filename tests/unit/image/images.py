"""Images for the tests of the compiler, and how they are compiled there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skyward.image import Plan, compile, with_origin  # noqa: A004
from skyward.model.image import Image, PipIndex

IMAGES = {
    "plain": Image(),
    "sklearn": Image(pip=["scikit-learn", "numpy>=2"], env={"OMP_NUM_THREADS": "1"}),
    "torch": Image(
        pip=["torch==2.13.0", "accelerate"],
        pip_indexes=[PipIndex("https://download.pytorch.org/whl/cpu", ["torch", "torchvision"])],
    ),
    "everything": Image(
        apt=["git", "libgomp1"],
        pip=["tomli; python_version < '3.11'", "requests[socks]>=2"],
        env={"QUOTES": "a \"b\" 'c' $HOME \\", "LINES": "one\ntwo", "PYTHONPATH": "/srv/lib"},
        run=["git --version", "cat <<'X'\n# not a comment\n$HOME \"quoted\" \\\nX"],
        platform="linux/arm64",
    ),
}


def compiled(image: Image, **given: Any) -> Plan:
    """The plan of an image on a fixed base."""
    facts = {
        "python": "3.11",
        "platform": "linux/amd64",
        "base": "python:3.11-slim",
        "base_digest": "sha256:" + "ba5e" * 16,
        "runner_digest": "f11e" * 16,
    }
    return compile(image, **{**facts, **given})


def torched(image: Image) -> Image:
    """What a plugin's transform does."""
    return with_origin(image, replace(image, pip=[*image.pip, "torch"], run=[*image.run, "true"]), "plugin torch")
