"""Whatever an `Image` accepts compiles to what an independent parser reads, and every text arrives as it was given."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dockerfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward.errors import ConfigError
from skyward.image import Copied, Lock, Package, Plan, requirements_file
from skyward.model.image import Image, PipIndex, local_path, requirement_name
from tests.unit.image.images import compiled
from tests.unit.image.odd import ODD
from tests.unit.image.steps import uv_calls

TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    st.lists(st.sampled_from(ODD), max_size=8).map("".join),
)
# The shell keeps some names for itself; a test of quoting has no use for them.
NAME = st.from_regex(r"X_[A-Za-z0-9_]{0,12}", fullmatch=True)
VARIABLES = st.dictionaries(NAME, TEXT, max_size=4)


def _accepted(**fields: Any) -> bool:
    """Whether an image takes these values. What it refuses need not compile."""
    try:
        Image(**fields)
    except ConfigError:
        return False
    return True


def _index(url: str) -> PipIndex | None:
    try:
        return PipIndex(url, ["torch"])
    except ConfigError:
        return None


REQUIREMENT = st.one_of(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["six", "Torch", "zope.interface", "a_b"]),
        st.sampled_from(["", "[x]", "[b, A]"]),
        st.sampled_from(["", ">=2,<3", "~=1.0", "==2.13.0+cpu", "===odd"]),
        st.one_of(
            st.just(""), TEXT.map(lambda text: f'; platform_version != "{text}"'), TEXT.map("; os_name == '{}'".format)
        ),
    ),
    TEXT.map(lambda text: f"own @ https://a.example/{text}"),
    TEXT.map(lambda text: f"./{text}"),
    TEXT.map(lambda text: f"./{text}/own-1.0-py3-none-any.whl"),
).filter(lambda text: _accepted(pip=[text]))
IMAGES = st.builds(
    Image,
    base=st.sampled_from([None, "python:3.11-slim", "a.example:5000/b/c_d:T.1@sha256:" + "0" * 64]),
    apt=st.lists(st.sampled_from(["git", "g++", "libc6:amd64=1:2.36-9+deb12u7~x", "hello/bookworm"]), max_size=3),
    pip=st.lists(REQUIREMENT, max_size=4),
    pip_indexes=st.lists(TEXT.map(lambda text: _index(f"https://a.example/{text}")).filter(bool), max_size=1),
    env=VARIABLES,
    build_env=VARIABLES,
    run=st.lists(TEXT.filter(lambda text: _accepted(run=[text])), max_size=3),
    secrets=st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True), max_size=2).filter(
        lambda names: _accepted(secrets=names)
    ),
    includes=st.lists(TEXT.filter(lambda text: _accepted(includes=[text])), max_size=2),
    excludes=st.lists(TEXT.filter(lambda text: _accepted(excludes=[text])), max_size=2),
    platform=st.sampled_from([None, "linux/arm64/v8"]),
)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _plan(image: Image, *, locked: bool) -> Plan:
    """The plan as a build would have it: with local files where the image names some, and code to bake."""
    local = [path for entry in image.pip if (path := local_path(entry)) is not None]
    packages = tuple(
        Copied(folder=f"local/{n}", digest=str(n), target=f"{n}/{p}", files=()) for n, p in enumerate(local)
    )
    names = {requirement_name(entry) for entry in image.pip if local_path(entry) is None}
    scoped = {name: index.url for index in image.pip_indexes for name in index.packages}
    lock = Lock(
        tuple(Package(name=name, pin=f"{name}==1", hashes=("sha256:0",), index=scoped.get(name, "")) for name in names)
    )
    code = Copied(folder="code", digest="0", files=()) if image.includes else None
    return compiled(image, packages=packages, code=code, lock=lock if locked else None)


@MANY
@given(IMAGES, st.booleans())
def test_an_independent_parser_reads_what_was_written(image: Image, locked: bool) -> None:
    """Instruction by instruction: no text of the user's becomes one, none of ours is lost, and flags stay flags."""
    plan = _plan(image, locked=locked)
    found = dockerfile.parse_string(plan.dockerfile)
    assert [each.cmd.upper() for each in found] == [layer.text.split(maxsplit=1)[0] for layer in plan.layers]
    mounts = [flag for each in found for flag in each.flags]
    assert all(re.fullmatch(r"--mount=type=(tmpfs|bind|cache|secret)(,[a-z]+(=[\w./-]+)?)+", flag) for flag in mounts)
    assert [each.value[3] for each in found if each.json] == [*image.run]
    assert {each.value[:3] for each in found if each.json} <= {("/bin/sh", "/run/steps/step.sh", "run")}
    label = dict(_pairs(found[-1].value, {}))
    assert label == dict(plan.labels)


@MANY
@given(IMAGES)
def test_values_of_the_environment_arrive(image: Image) -> None:
    """By the rules of the format: quotes, escapes, and build arguments for the ends of lines."""
    found = dockerfile.parse_string(_plan(image, locked=False).dockerfile)
    *_, last = (each for each in found if each.cmd.upper() == "ENV")
    arguments = dict(_plan(image, locked=False).build_args)
    read = _pairs(last.value, arguments) if image.env else {}
    assert {name: value for name, value in read.items() if name.startswith("X_")} == dict(image.env)


@settings(MANY, max_examples=60)
@given(IMAGES, st.booleans())
def test_words_arrive_at_what_a_step_runs(image: Image, locked: bool) -> None:
    """The scripts of the steps that install packages, with a uv that notes its words: paths, URLs, variables."""
    plan = _plan(image, locked=locked)
    with TemporaryDirectory() as folder:
        words = [word.replace(folder, "") for call in uv_calls(plan, Path(folder)) for word in call]
    targets = [f"/run/local/{copied.target}" for copied in plan.copied if copied.folder != "code"]
    urls = {index.url for index in image.pip_indexes if plan.lock and any(p.index for p in plan.lock.packages)}
    assert sorted(word for word in words if word.startswith("/run/local/")) == sorted(targets)
    assert {words[place + 1] for place, word in enumerate(words) if word == "--default-index"} >= urls
    script = dict(plan.files).get("build-env.sh", "")
    script += "".join(f"printf '%s\\0' \"${name}\"\n" for name in image.build_env)
    assert _said(script) == [*image.build_env.values()]


@MANY
@given(IMAGES)
def test_requirements_arrive_at_uv(image: Image) -> None:
    """Extras, markers with odd texts, and URLs of indexes, in the file that uv locks."""
    listed = [entry for entry in image.pip if local_path(entry) is None]
    document = tomllib.loads(requirements_file(image, listed, python="3.11"))
    assert document["project"]["dependencies"] == listed
    assert [each["url"] for each in document["tool"]["uv"]["index"]] == [index.url for index in image.pip_indexes]


def _said(script: str) -> list[str]:
    """The words that a script printed."""
    done = subprocess.run(
        ["sh", "-eu"], input=script.encode(), capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    return [word.decode() for word in done.stdout.split(b"\0")[:-1]]


def _pairs(tokens: tuple[str, ...], arguments: dict[str, str]) -> dict[str, str]:
    """Names and values of an ENV or LABEL, as a builder's words."""
    return {name: _word(token, arguments) for name, token in zip(tokens[::2], tokens[1::2], strict=True)}


def _word(token: str, arguments: dict[str, str]) -> str:
    """A word between double quotes: a backslash before quote, backslash or dollar is one; `${NAME}` is replaced."""
    assert token[0] == token[-1] == '"'
    assert len(token) > 1
    pieces = re.findall(r'\\["\\$]|\$\{\w+\}|[^"$]', token[1:-1], re.DOTALL)
    assert "".join(pieces) == token[1:-1]
    return "".join(
        piece[1:]
        if len(piece) == 2 and piece[0] == "\\"
        else arguments[piece[2:-1]]
        if piece.startswith("${")
        else piece
        for piece in pieces
    )
