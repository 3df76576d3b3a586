"""What an image stands on: the facts of a base image, and bases that are built from the user's own Dockerfile.

The facts (Python, user, C library; `inspection.py` finds them) are cached by the image's id, and checked whether they
suffice. The tag of a base that is built follows from its Dockerfile's text and from the files that it may copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from skyward.builder.files.copied import Files, digest_of
from skyward.builder.folders import cache_path, read, write
from skyward.builder.packages.metadata import located
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import BuildError, ConfigError, ImageError
from skyward.image import BaseBuild, BaseFacts, Plan
from skyward.model.ignore import Ignore
from skyward.model.image import Dockerfile

_FORMAT = 2  # raised when what is found out changes
# an instruction that reads the build context; everything else depends on the text alone
_READS = re.compile(r"^\s*(?:ONBUILD\s+)?(?:(?:COPY|ADD)\s|RUN\s.*--mount=\S*type=bind)", re.IGNORECASE | re.MULTILINE)
_FROM_STAGE = re.compile(r"--from=|,from=|=bind\S*from=", re.IGNORECASE)


def facts_of_base(reference: str, facts: ImageFacts, store: EngineImages, platform: str) -> BaseFacts:
    """The facts of an image on the engine, for images built on it; cached by its id.

    Raises:
        EngineError: the engine refuses.
    """
    note = _note(facts.id, platform)
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # none yet, half written, or of another version
        return BaseFacts.of(json.loads(read(note) or ""))
    from skyward.builder.inspection import examine  # where it is noted, none of this is loaded

    whole = facts if facts.config is not None else store.inspect(reference)
    config = (whole.config if whole else None) or {}
    with store.files(reference) as files:
        found = examine(config, files, platform)
    write(note, json.dumps(asdict(found)))
    return found


def noted_libc(dockerfile: str, find: Callable[[], str]) -> str:
    """The C library that was found for a Dockerfile's digest once, noted as `facts_of_base` does."""
    note = _note(dockerfile, "libc")
    known = read(note)
    if known is None:
        known = find()
        write(note, known)
    return known


def check_base(name: str, given: BaseFacts, python: str) -> None:
    """Check that an image can be built on a base.

    Raises:
        ImageError: it lacks what that takes.
    """
    reason = why_unfit(given, python)
    if reason:
        raise ImageError(f"The base image {name} cannot be built on. {reason}")


def why_unfit(given: BaseFacts, python: str) -> str:
    """The reason why nothing can be built on a base, and the remedy; "" if it can."""
    if "sh" in given.missing:
        return (
            "It has no shell, as is usual for images called distroless or made from scratch, and installing packages "
            f"takes one. Take a base with a shell, such as python:{python}-slim, and copy what you need into it."
        )
    if given.libc == "musl":
        return (
            f"Its C library is musl{_said(given)}, and the packages of nodes are those for glibc. Take a base made "
            f"from Debian, Ubuntu or another distribution with glibc, such as python:{python}-slim."
        )
    if given.missing:
        return (
            f"It lacks programs that the steps of a build need: {', '.join(given.missing)}{_said(given)}. Install them "
            "in a Dockerfile of your own and name that as base (they are in the packages coreutils, findutils, grep)."
        )
    reading = [line for line in given.onbuild if reads_context(line)]
    if reading:
        return (
            f"Its ONBUILD instructions copy files of the folder that a build is started in: {'; '.join(reading)}. Make "
            "an image of your own from it, with a Dockerfile in that folder, and name this Dockerfile as base."
        )
    if given.lacks(python) and not given.pythons and not given.apt:
        return (
            f"It has no Python, and neither pip nor apt to bring one{_said(given)}. Install Python {python} in a "
            f"Dockerfile of your own and name that as base, or take one that has it, such as python:{python}-slim."
        )
    return ""


def replaced_python(plan: Plan) -> str:
    """A note if the image gets another Python than the base has; "" if not."""
    if not (plan.given and plan.given.pythons and plan.given.lacks(plan.python)):
        return ""
    first = plan.given.pythons[0]
    return (
        f"the base has Python {first.version} ({first.path}), and nodes get Python {plan.python}, as this client has: "
        "packages that the base has for its own are not seen there"
    )


def _said(given: BaseFacts) -> str:
    return f" ({given.system})" if given.system else ""


def _note(image: str, platform: str) -> Path:
    name = hashlib.sha256(f"{_FORMAT} {image} {platform}".encode()).hexdigest()
    return cache_path("bases", f"{name[:32]}.json")


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


def _digest(target: str | None, platform: str, dockerfile: str, files: Files) -> str:
    parts = ["skyward.dockerfile", platform, target or "", digest_of((("Dockerfile", dockerfile), *files))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _walk(folder: Path, context: Path, ignored: Ignore) -> Iterator[Path]:
    """The entries of a context that the builder gets: files, links, and empty directories."""
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


def reads_context(text: str) -> bool:
    """Whether an instruction of a Dockerfile may read files of the build context."""
    return any(_READS.match(line) and not _FROM_STAGE.search(line) for line in _instructions(text))


def named_user(text: str, target: str | None = None) -> str:
    """The user that a Dockerfile's last stage, or the target, names; "" where it names none, or by a variable."""
    stage = _stage(text, target)
    return "" if "$" in stage.user else stage.user


def parent_of(text: str, target: str | None = None) -> str:
    """The image that a Dockerfile's last stage, or the target, is built from in the end; "" where none tells."""
    parent = _stage(text, target).parent
    return "" if "$" in parent or parent == "scratch" else parent


def images_of(text: str) -> set[str]:
    """The images that a Dockerfile takes from registries, as far as its text alone tells.

    Those of FROM, `--from=`, mounts and the line `# syntax=`; variables have the defaults of the ARGs before the first
    stage. Named stages are none.
    """
    syntax = re.match(r"\s*#\s*syntax\s*=\s*(\S+)", text, re.IGNORECASE)
    taken = {image for stage in _stages(text).values() for image in stage.images}
    return {image for image in ({syntax[1]} if syntax else set()) | taken if "$" not in image}


@dataclass(slots=True)
class _Stage:
    """A stage of a Dockerfile: the image that it is built from in the end, those it names itself, and its user."""

    parent: str = ""
    images: set[str] = field(default_factory=set)
    user: str = ""


def _stage(text: str, target: str | None) -> _Stage:
    """The stage that is built: the target, else the last one."""
    stages = _stages(text)
    return stages.get(target or next(reversed(stages), ""), _Stage())


def _stages(text: str) -> dict[str, _Stage]:
    """The stages of a Dockerfile by their names, or numbers where they have none."""
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
                stage = _Stage(stages[image].parent) if image in stages else _Stage(image, {image} - {"", "scratch"})
                stages[alias[1] if len(alias) > 1 else str(len(stages))] = stage
            case ["USER"] if len(words) == 2:
                stage.user = words[1]
            case _:
                taken = re.findall(r"(?:--|,)from=([^\s,]+)", " ".join(words))
                stage.images |= {each for each in taken if each not in (*stages, "scratch") and not each.isdigit()}
    return stages


def _instructions(text: str) -> list[str]:
    """The lines of a Dockerfile, those that go on in the next line joined."""
    return re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()


def _filled(word: str, defaults: Mapping[str, str]) -> str:
    """A word of a Dockerfile with the variables that have a default replaced."""

    def value(found: re.Match[str]) -> str:
        name, otherwise = found[1] or found[3], found[2]
        return defaults.get(name) or otherwise or found[0]

    return re.sub(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))", value, word)
