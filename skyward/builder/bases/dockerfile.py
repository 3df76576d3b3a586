"""Bases built from the user's own Dockerfile; their tag follows from its text and from the files that it may copy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from skyward.builder.files.digest import Files, digest_of
from skyward.builder.packages.local import located
from skyward.errors import BuildError, ConfigError
from skyward.image import BaseBuild
from skyward.model.ignore import Ignore
from skyward.model.image import Dockerfile

# an instruction that reads the build context; everything else depends on the text alone
_READS = re.compile(r"^\s*(?:ONBUILD\s+)?(?:(?:COPY|ADD)\s|RUN\s.*--mount=\S*type=bind)", re.IGNORECASE | re.MULTILINE)
_FROM_STAGE = re.compile(r"--from=|,from=|=bind\S*from=", re.IGNORECASE)


def base_build(base: Dockerfile, root: Path, platform: str) -> BaseBuild:
    """The build of a base.

    Args:
        base: as the image names it.
        root: what its paths are relative to.
        platform: of the image.

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
    files = tuple(_context_files(file, context)) if reads_context(text) else ()
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
    """Copy a user's Dockerfile, and those files of its context that it may read, into a build's folder.

    Raises:
        BuildError: they are no longer those that the base was named after.
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


def named_user(text: str, target: str | None = None) -> str:
    """The user that a Dockerfile's last stage, or the target, names; "" where it names none, or by a variable."""
    user, stage = "", None
    for words in (line.split() for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()):
        match [word.upper() for word in words[:1]]:
            case ["FROM"]:
                if target is not None and stage == target:
                    break
                user, stage = "", words[-1] if len(words) > 3 and words[-2].upper() == "AS" else None
            case ["USER"] if len(words) == 2:
                user = words[1]
    return "" if "$" in user else user


def parent_of(text: str, target: str | None = None) -> str:
    """The image that a Dockerfile's last stage, or the target, is built from in the end; "" where none tells."""
    defaults: dict[str, str] = {}
    parents: dict[str, str] = {}
    for words in (line.split() for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()):
        match [word.upper() for word in words[:1]]:
            case ["ARG"] if not parents:
                defaults |= {name: value.strip("\"'") for word in words[1:] for name, _, value in [word.partition("=")]}
            case ["FROM"]:
                named = [word for word in words[1:] if not word.startswith("--")]
                stage = named[2] if len(named) > 2 else str(len(parents))
                parent = _filled(named[0], defaults) if named else ""
                parents[stage] = parents.get(parent, parent)
    found = parents.get(target, "") if target else next(reversed(parents.values()), "")
    return "" if "$" in found or found == "scratch" else found


def images_of(text: str) -> set[str]:
    """The images that a Dockerfile takes from registries, as far as its text alone tells.

    Those of FROM, `--from=`, mounts and the line `# syntax=`; variables have the defaults of the ARGs before the first
    stage. Named stages are none.
    """
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    defaults: dict[str, str] = {}
    stages, found = {"scratch"}, set[str]()
    if syntax := re.match(r"\s*#\s*syntax\s*=\s*(\S+)", text, re.IGNORECASE):
        found.add(syntax[1])
    for words in (line.split() for line in joined.splitlines()):
        match [word.upper() for word in words[:1]]:
            case ["ARG"] if len(stages) == 1:
                defaults |= {name: value.strip("\"'") for word in words[1:] for name, _, value in [word.partition("=")]}
            case ["FROM"]:
                named = [word for word in words[1:] if not word.startswith("--")]
                found |= {_filled(named[0], defaults)} - stages if named else set()
                stages.add(named[2] if len(named) > 2 else str(len(stages) - 1))
            case _:
                taken = re.findall(r"(?:--|,)from=([^\s,]+)", " ".join(words))
                found |= {each for each in taken if each not in stages and not each.isdigit()}
    return {image for image in found if "$" not in image}


def _filled(word: str, defaults: Mapping[str, str]) -> str:
    """A word of a Dockerfile with the variables that have a default replaced."""

    def value(found: re.Match[str]) -> str:
        name, otherwise = found[1] or found[3], found[2]
        return defaults.get(name) or otherwise or found[0]

    return re.sub(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))", value, word)


def reads_context(text: str) -> bool:
    """Whether an instruction of a Dockerfile may read files of the build context."""
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    lines = (line for line in joined.splitlines() if _READS.match(line))
    return any(not _FROM_STAGE.search(line) for line in lines)


def _digest(target: str | None, platform: str, dockerfile: str, files: Files) -> str:
    parts = ["skyward.dockerfile", platform, target or "", digest_of((("Dockerfile", dockerfile), *files))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _context_files(file: Path, context: Path) -> Iterator[tuple[str, str]]:
    """The entries of a context that the builder gets: files, links, and empty directories."""
    ignored = Ignore(_ignore_patterns(file, context))
    for path in _walk(context, context, ignored):
        yield path.relative_to(context).as_posix(), str(path)


def _walk(folder: Path, context: Path, ignored: Ignore) -> Iterator[Path]:
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
    """The patterns the builder goes by: those beside the Dockerfile before those of the context."""
    for candidate in (file.with_name(f"{file.name}.dockerignore"), context / ".dockerignore"):
        if candidate.is_file():
            lines = candidate.read_text(encoding="utf-8-sig").splitlines()
            return [line for line in lines if line.strip() and not line.startswith("#")]
    return []
