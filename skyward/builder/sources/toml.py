"""The keys of an image's TOML file and of `[tool.skyward]`, as types for pydantic.

pydantic checks the types and `Image` the values, field by field, so that all mistakes are reported at once. Loading
pydantic takes 50 ms, so this module is imported only when a file has to be read.

In a key's `Field`, `title` completes the message "KEY must be ...", and `description` documents the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from skyward.errors import ConfigError
from skyward.model.image import Dockerfile, Image, PipIndex, Project
from skyward.model.spec import Accelerator, Nodes

type_check = with_config(ConfigDict(extra="forbid", strict=True))
Location = tuple[str | int, ...]
Text = Annotated[str, Field(title="a string")]
Texts = Annotated[list[str], Field(title="a list of strings")]
TableOfTexts = Annotated[dict[str, str], Field(title="a table of strings")]


@type_check
class DockerfileTable(TypedDict, total=False):
    """A base that a Dockerfile makes."""

    dockerfile: Required[Annotated[Text, Field(description="Path of the Dockerfile.")]]
    context: Annotated[Text, Field(description="Directory whose files it may copy. Default: '.'.")]
    target: Annotated[Text, Field(description="The stage to start from. Default: the last one.")]


@type_check
class ProjectTable(TypedDict, total=False):
    """A Python project that is installed as its lock has it."""

    path: Annotated[Text, Field(description="Directory of its pyproject.toml. Default: '.'.")]
    groups: Annotated[Texts, Field(description="Dependency groups to install with it.")]
    extras: Annotated[Texts, Field(description="Optional dependencies to install with it.")]
    package: Annotated[Text, Field(description="The member of its workspace to install in its place.")]


@type_check
class IndexTable(TypedDict):
    """A package index for single packages."""

    url: Annotated[Text, Field(description="Its URL, without user name and password.")]
    packages: Annotated[Texts, Field(description="The packages that come from there, and from nowhere else.")]


_BASE = "an image reference, the path of a Dockerfile, or a table with dockerfile and perhaps context and target"
_PROJECT = "the directory of a project, or a table with path and perhaps groups, extras and package"
_INDEXES = "tables [[pip_indexes]], each with url = '...' and packages = ['...']"
_PLUGINS = "a list of names, or tables [plugins.NAME] with the plugin's parameters"
_NEWEST = "a date such as 2026-05-31, or a time with its zone"


@type_check
class ImageFile(TypedDict, total=False):
    """An image for the nodes of a pool. Paths are relative to the file."""

    base: Annotated[str | DockerfileTable, Field(title=_BASE, description="What the image starts from.")]
    python: Annotated[
        str,
        Field(
            title="'auto' or a minor version in quotes, such as '3.12'",
            description="Version of Python: the client's, which 'auto' stands for.",
        ),
    ]
    apt: Annotated[Texts, Field(description="Debian packages: 'git', 'git=1:2.39.5-0'.")]
    pip: Annotated[Texts, Field(description="Requirements such as 'torch==2.13.0', local wheels and projects.")]
    requirements: Annotated[Texts, Field(description="Files of requirements to install.")]
    constraints: Annotated[Texts, Field(description="Files of versions that packages must have if they are installed.")]
    groups: Annotated[Texts, Field(description="Dependency groups of the nearest pyproject.toml to install.")]
    project: Annotated[
        str | ProjectTable, Field(title=_PROJECT, description="A project to install exactly as its lock has it.")
    ]
    pip_indexes: Annotated[
        list[IndexTable], Field(title=_INDEXES, description="Further package indexes, each for the packages it names.")
    ]
    exclude_newer: Annotated[
        str | date | datetime, Field(title=_NEWEST, description="Take no package that was published later.")
    ]
    build_env: Annotated[TableOfTexts, Field(description="Environment of the build steps; nodes do not see it.")]
    env: Annotated[TableOfTexts, Field(description="Environment of the nodes; build steps do not see it.")]
    run: Annotated[Texts, Field(description="Shell commands, run in this order after all packages are installed.")]
    secrets: Annotated[Texts, Field(description="Names of secrets that build steps may read.")]
    includes: Annotated[Texts, Field(description="Local files and folders that the nodes get.")]
    excludes: Annotated[Texts, Field(description="Patterns of what to leave out of includes.")]
    bake: Annotated[
        bool,
        Field(title="true or false", description="Put includes into the image, instead of sending them to the nodes."),
    ]
    platform: Annotated[
        str, Field(title="a string such as 'linux/amd64'", description="Platform of the image. Default: the nodes'.")
    ]
    lock: Annotated[
        str,
        Field(
            title="the path of a file that `skyward lock` writes",
            description="The lock that the image must fit. Default: NAME.lock beside this file, if it exists.",
        ),
    ]
    plugins: Annotated[
        list[str] | dict[str, dict[str, Any]], Field(title=_PLUGINS, description="Plugins of the pool, by name.")
    ]
    accelerator: Annotated[
        str, Field(title="a string such as 'A100' or 'A100:4'", description="Accelerators of each node, for plugins.")
    ]
    nodes: Annotated[int, Field(ge=1, title="a whole number, at least 1", description="Number of nodes, for plugins.")]


@type_check
class ToolTable(TypedDict, total=False):
    """Settings of skyward, [tool.skyward] in pyproject.toml."""

    indexes: Annotated[
        TableOfTexts,
        Field(description="Where packages of an index are taken from instead: URL to URL or folder of wheels."),
    ]


def read(path: Path) -> dict[str, Any]:
    """Return the checked values of an image file.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong: one line for each mistake.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors on Windows write a byte order mark
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    problems = dict(_wrong_types(ImageFile, values))
    wrong = {location[0] for location in problems}
    right = {key: value for key, value in values.items() if key not in wrong}
    problems |= {(key,): sentence for key, sentence in _wrong_values(right)}
    _raise_all(path, text, problems)
    return values


def check_tool_table(path: Path, text: str, table: object) -> dict[str, Any]:
    """Return `[tool.skyward]` of a pyproject.toml after checking it.

    Raises:
        ConfigError: a key or a value is wrong: one line for each mistake.
    """
    _raise_all(path, text, dict(_wrong_types(ToolTable, table)), ("tool", "skyward"))
    assert isinstance(table, dict)
    return table


def image_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert checked values to the arguments of `Image`."""
    fields = dict(values)
    if isinstance(base := fields.get("base"), dict):
        fields["base"] = Dockerfile(base["dockerfile"], base.get("context", "."), base.get("target"))
    if (project := fields.get("project")) is not None:
        fields["project"] = Project(**project) if isinstance(project, dict) else Project(project)
    if "pip_indexes" in fields:
        fields["pip_indexes"] = [PipIndex(**index) for index in fields["pip_indexes"]]
    if isinstance(newest := fields.get("exclude_newer"), date):  # a datetime is also a date
        fields["exclude_newer"] = newest.isoformat()
    return fields


def _wrong_types(kind: Any, values: object) -> Iterator[tuple[Location, str]]:
    adapter = TypeAdapter(kind)
    try:
        adapter.validate_python(values)
    except ValidationError as error:
        titles = {key: about.get("title", "") for key, about in adapter.json_schema()["properties"].items()}
        found = [(_location(each["loc"], values, each["type"]), each) for each in error.errors(include_url=False)]
        deeper = {location[:1] for location, _ in found if len(location) > 1}  # for values that may be text or a table
        for location, each in found:
            if location not in deeper:
                yield location, _sentence(location, each["type"], each["input"], titles)


def _location(given: Location, values: object, mistake: str) -> Location:
    """Return the keys that lead to a mistake, without the names that pydantic adds for the members of a union."""
    location: list[str | int] = []
    for part in given:
        if (isinstance(values, dict) and part in values) or (isinstance(values, list) and isinstance(part, int)):
            values = values[part]  # type: ignore[index]
            location.append(part)
    return (*location, given[-1]) if mistake == "missing" else tuple(location)


def _sentence(location: Location, mistake: str, found: object, titles: Mapping[str, str]) -> str:
    name = ".".join(map(str, location))
    if mistake == "missing":
        return f"{name} is missing."
    if mistake == "extra_forbidden":
        if len(location) > 1:
            return f"there is no key {name!r}."
        close = get_close_matches(name, titles, n=3)
        return f"there is no key {name!r}. " + (
            f"Did you mean {' or '.join(close)}?" if close else f"Known keys: {', '.join(titles)}."
        )
    types = {"string_type": "a string", "list_type": "a list", "dict_type": "a table"}
    wanted = titles[name] if name in titles else types[mistake]
    return f"{name or 'this'} must be {wanted}; found {found!r}."


def _wrong_values(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        try:
            match key:
                case "plugins":
                    pass
                case "accelerator":
                    Accelerator.of(value)
                case "nodes":
                    Nodes.of(value)
                case _:
                    Image(**image_fields({key: value}))
        except ConfigError as error:
            yield key, str(error).removeprefix("Image: ")


def _raise_all(path: Path, text: str, problems: Mapping[Location, str], above: Location = ()) -> None:
    if problems:
        found = sorted((_line(text, (*above, *location)), sentence) for location, sentence in problems.items())
        raise ConfigError("\n".join(f"{path}:{line}: {sentence}" for line, sentence in found))


def _line(text: str, location: Location) -> int:
    """Return the line of the statement that sets a value: the text up to its end is the first to contain the value.

    Text cut between two statements is valid TOML; text cut within a statement is not.
    """
    lines = text.split("\n")
    found, start, depth = 1, 0, 0
    for end in range(1, len(lines) + 1):
        try:
            document: Any = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        reached = _depth(document, location)
        if reached > depth:
            found, depth = start + 1, reached
        start = end
    return found


def _depth(values: Any, location: Location) -> int:
    for depth, part in enumerate(location):
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return depth
    return len(location)
