"""What the compiler makes of `images/*.toml`, kept in `dockerfiles/` so that anyone can read what is built.

`python -m scripts.dockerfiles` rewrites the files; look at the difference before keeping it. They are the same on every
machine: compiled for one Python and platform, with stand-ins for what only a build knows. The lock is mounted, not
part of the text; only which packages are large enough for a layer of their own shows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from skyward.builder.packages.requirements import resolve_files
from skyward.builder.sources.declared import load
from skyward.image import compile, default_base  # noqa: A004
from skyward.model.image import Dockerfile
from skyward.plugins.registry import declared_image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "images"
DOCKERFILES = ROOT / "dockerfiles"
PYTHON = "3.11"
PLATFORM = "linux/amd64"
NOTE = """\
# images/{name}.toml for Python {python} on {platform}. Rewritten by `make dockerfiles`.
# The digest in FROM is left out, and those in LABEL stand for what only a build knows.
"""


def text_of(path: Path) -> str:
    """The Dockerfile of one description."""
    declared = load(path)
    image = resolve_files(declared_image(declared, platform=PLATFORM, python=PYTHON), declared.root).image
    own = isinstance(image.base, Dockerfile)
    plan = compile(
        image,
        python=PYTHON,
        platform=PLATFORM,
        base=f"skyward-base:{declared.name}" if own else str(image.base or default_base(PYTHON)),
        base_digest="sha256:" + "0" * 64,
        runner_digest="0" * 64,
    )
    return NOTE.format(name=declared.name, python=PYTHON, platform=PLATFORM) + plan.dockerfile


def main() -> int:
    """Write every file, and remove those whose description is gone."""
    texts = {path.stem: text_of(path) for path in sorted(IMAGES.glob("*.toml"))}
    for old in DOCKERFILES.glob("*.Dockerfile"):
        if old.stem not in texts:
            old.unlink()
    for name, text in texts.items():
        (DOCKERFILES / f"{name}.Dockerfile").write_text(text, encoding="utf-8")
    print(f"{len(texts)} files in {DOCKERFILES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
