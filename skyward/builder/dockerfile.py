"""Bases built from the user's own Dockerfile; their tag is derived from its text and the files that it may copy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.files.copied import Files, digest_of
from skyward.builder.packages.metadata import located
from skyward.errors import BuildError, ConfigError
from skyward.image import BaseBuild
from skyward.model.ignore import Ignore
from skyward.model.image import Dockerfile

if TYPE_CHECKING:
    pass

# an instruction that reads the build context; everything else depends only on the text
_READS = re.compile(r"^\s*(?:ONBUILD\s+)?(?:(?:COPY|ADD)\s|RUN\s.*--mount=\S*type=bind)", re.IGNORECASE | re.MULTILINE)
_HEREDOC = re.compile(r"""(?<!\S)\d*<<(-?)(["']?)([\w.]+)\2(?!\S)""")
_HAS_HEREDOCS = re.compile(r"\s*(?:RUN|COPY|ADD|ONBUILD)\s", re.IGNORECASE)
_FROM_STAGE = re.compile(r"--from=|,from=|=bind\S*from=", re.IGNORECASE)


def base_build(base: Dockerfile, root: Path, platform: str) -> BaseBuild:
    """Return the build of a base.

    Args:
        base: the base as the image names it.
        root: base directory of its relative paths.
        platform: platform of the image.

    Raises:
        ConfigError: the Dockerfile or a file of its context cannot be read.
    """
    file, context = located(root, base.path), located(root, base.context)
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"Image: base names the Dockerfile {base.path!r}, but {file}: {error.strerror}.") from None
    if not context.is_dir():
        raise ConfigError(f"Image: base.context is {base.context!r}, but there is no directory {context}.")
    files: Files = ()
    if reads_context(text):
        found = _walk(context, context, Ignore(_ignore_patterns(file, context)))
        files = tuple((path.relative_to(context).as_posix(), str(path)) for path in found)
    digest = _digest(base.target, platform, str(file), files)
    return BaseBuild(
        dockerfile=str(file),
        target=base.target,
        platform=platform,
        digest=digest,
        tag=f"skyward:base-{digest[:16]}",
        files=files,
        parent=parent_of(text, base.target),
        user=named_user(text, base.target),
    )


def copy_base(place: Path, base: BaseBuild) -> None:
    """Copy a user's Dockerfile, and the files of its context that it may read, into a build's folder.

    Raises:
        BuildError: they have changed since the base was named.
    """
    import shutil

    context = place / "context"
    context.mkdir()
    shutil.copyfile(base.dockerfile, place / "Dockerfile")
    for name, source in base.files:
        target = context / name
        if Path(source).is_dir() and not Path(source).is_symlink():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    placed = tuple((name, str(context / name)) for name, _ in base.files)
    if _digest(base.target, base.platform, str(place / "Dockerfile"), placed) != base.digest:
        raise BuildError(
            f"{base.dockerfile} or files that it copies changed while it was being prepared. Run it again once they "
            "are quiet."
        )


def _digest(target: str | None, platform: str, dockerfile: str, files: Files) -> str:
    parts = ["skyward.dockerfile", platform, target or "", digest_of((("Dockerfile", dockerfile), *files))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _walk(folder: Path, context: Path, ignored: Ignore) -> Iterator[Path]:
    """Yield the entries of a context that the builder receives: files, links, and empty directories."""
    for path in sorted(folder.iterdir()):
        left_out = ignored(path.relative_to(context).as_posix())
        if path.is_dir() and not path.is_symlink():
            if not left_out or ignored.has_exceptions:
                yield from _walk(path, context, ignored)
            if not left_out and not any(path.iterdir()):
                yield path
        elif not left_out and (path.is_file() or path.is_symlink()):
            yield path


def _ignore_patterns(file: Path, context: Path) -> list[str]:
    """Return the ignore patterns that the builder uses: those beside the Dockerfile precede those of the context."""
    for candidate in (file.with_name(f"{file.name}.dockerignore"), context / ".dockerignore"):
        if candidate.is_file():
            lines = candidate.read_text(encoding="utf-8-sig").splitlines()
            return [line for line in lines if line.strip() and not line.startswith("#")]
    return []


def reads_context(text: str) -> bool:
    """Return whether an instruction of a Dockerfile may read files of the build context."""
    return any(_READS.match(line) and not _FROM_STAGE.search(line) for line in _instructions(text))


def named_user(text: str, target: str | None = None) -> str:
    """Return the user named in a Dockerfile's last stage or the target; "" if none is, or only by a variable."""
    stage = _stage(text, target)
    return "" if "$" in stage.user else stage.user


def parent_of(text: str, target: str | None = None) -> str:
    """Return the image at the root of a Dockerfile's last stage or the target; "" if unknown."""
    parent = _stage(text, target).parent
    return "" if "$" in parent or parent == "scratch" else parent


def images_of(text: str) -> set[str]:
    """Return the images that a Dockerfile takes from registries, as far as its text shows.

    They are those of FROM, `--from=`, mounts and the line `# syntax=`; variables have the defaults of the ARGs before
    the first stage. Named stages are not included.
    """
    syntax = re.match(r"\s*#\s*syntax\s*=\s*(\S+)", text, re.IGNORECASE)
    taken = {image for stage in _stages(text).values() for image in stage.images}
    return {image for image in ({syntax[1]} if syntax else set()) | taken if "$" not in image}


@dataclass(slots=True)
class _Stage:
    """A stage of a Dockerfile: the image at its root, the images it names itself, and its user."""

    parent: str = ""
    images: set[str] = field(default_factory=set)
    user: str = ""


def _stage(text: str, target: str | None) -> _Stage:
    """Return the stage to build: the target, or else the last one."""
    stages = _stages(text)
    return stages.get(target.lower() if target else next(reversed(stages), ""), _Stage())


def _stages(text: str) -> dict[str, _Stage]:
    """Return the stages of a Dockerfile by name, or by number if they have none."""
    defaults: dict[str, str] = {}
    stages: dict[str, _Stage] = {}
    stage = _Stage()
    for words in map(str.split, _instructions(text)):
        match [word.upper() for word in words[:1]]:
            case ["ARG"] if not stages:
                defaults |= {name: value.strip("\"'") for word in words[1:] for name, _, value in [word.partition("=")]}
            case ["FROM"]:
                image, *alias = [word for word in words[1:] if not word.startswith("--")] or [""]
                image = _filled(image, defaults)
                below = stages.get(image.lower())
                stage = _Stage(below.parent, user=below.user) if below else _Stage(image, {image} - {"", "scratch"})
                stages[alias[1].lower() if len(alias) > 1 else str(len(stages))] = stage
            case ["USER"] if len(words) == 2:
                stage.user = words[1]
            case _:
                taken = re.findall(r"(?:--|,)from=([^\s,]+)", " ".join(words))
                stage.images |= {
                    each for each in taken if each.lower() not in (*stages, "scratch") and not each.isdigit()
                }
    return stages


def _instructions(text: str) -> list[str]:
    """Return the instructions of a Dockerfile, each in one line, without comments and the text of heredocs."""
    found: list[str] = []
    heredocs: list[tuple[str, str]] = []
    goes_on = False
    for line in text.splitlines():
        if heredocs:
            dash, name = heredocs[0]
            if (line.lstrip("\t") if dash else line) == name:
                del heredocs[0]
        elif line.strip() and not line.lstrip().startswith("#"):
            words = line.rstrip().removesuffix("\\")
            found = [*found[:-1], f"{found[-1]} {words}"] if goes_on else [*found, words]
            goes_on = words != line.rstrip()
            if not goes_on and _HAS_HEREDOCS.match(found[-1]):
                heredocs = [(dash, name) for dash, _, name in _HEREDOC.findall(found[-1])]
    return found


def _filled(word: str, defaults: Mapping[str, str]) -> str:
    """Replace the variables in a word of a Dockerfile that have a default."""

    def value(found: re.Match[str]) -> str:
        name, otherwise = found[1] or found[3], found[2]
        return defaults.get(name) or otherwise or found[0]

    return re.sub(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))", value, word)
