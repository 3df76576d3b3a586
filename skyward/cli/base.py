"""`skyward build --check-base`: the facts of an image that matter for a base, and how skyward would use it as one."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from skyward.builder.bases.facts import facts_of_base, why_unfit
from skyward.builder.planning import resolve_base
from skyward.builder.store import EngineImages
from skyward.errors import ImageError
from skyward.image import BaseFacts, Interpreter
from skyward.model.rights import ACCOUNT
from skyward.model.targets import local_minor


def show_base(reference: str, store: EngineImages, platform: str, *, as_json: bool) -> int:
    """Print what an image has, which is pulled if the engine does not have it.

    Raises:
        ImageNotFoundError: it is nowhere.
        ImageError: nothing can be built on it; printed is what it has all the same.
        EngineError: the engine refuses.
    """
    base, python = resolve_base(reference, store), local_minor()
    assert base.facts
    given = facts_of_base(reference, base.facts, store, platform)
    reason = why_unfit(given, python)
    does = [] if reason else _does(given, python)
    if as_json:
        about = {"event": "base", "image": reference, "id": base.facts.id, "platform": platform, **asdict(given)}
        click.echo(json.dumps({**about, "does": does, "fit": not reason}))
    else:
        _print(reference, platform, given, does)
    if reason:
        raise ImageError(f"{reference} cannot be a base. {reason}")
    return 0


def _print(reference: str, platform: str, given: BaseFacts, does: list[str]) -> None:
    libc = given.libc or "no C library that is known"
    rows = [
        ("image", f"{reference} ({platform})"),
        ("system", ", ".join(filter(None, [given.system or "not named", libc, "apt" if given.apt else "no apt"]))),
        *(("Python", _python(each)) for each in given.pythons),
        *([] if given.pythons else [("Python", "none")]),
        ("user", given.user or "none, which is root"),
        ("entry point", json.dumps(given.entrypoint) if given.entrypoint else "none"),
        ("CUDA", given.cuda or "none"),
        *(("ONBUILD", line) for line in given.onbuild),
        *([("lacks", ", ".join(given.missing))] if given.missing else []),
        *(("skyward", line) for line in does),
    ]
    last = ""
    for name, text in rows:
        click.echo(f"{name if name != last else '':<12} {text}")
        last = name


def _python(found: Interpreter) -> str:
    of = f", of the virtual environment {found.environment}" if found.environment else ""
    return f"{found.version or 'of a version that its files do not tell'}: {found.path}{of}"


def _does(given: BaseFacts, python: str) -> list[str]:
    """What becomes of an image that is built on it, in sentences."""
    if given.lacks(python):
        lost = "; packages of its own Python are not seen" if given.pythons else ""
        does = [f"brings Python {python}, this client's version, with uv or apt{lost}"]
    else:
        first = next(each for each in given.pythons if each.version in (python, ""))
        if first.environment == "/opt/venv":
            does = [f"installs packages into {first.environment}"]
        else:
            does = [f"makes /opt/venv of {first.path}, whose packages stay importable"]
    does.append(f"runs nodes as {given.user_in_the_end or f'the user {ACCOUNT}, or as yours'}")
    if given.entrypoint:
        does.append("starts nodes through its entry point" if given.runs_commands else _DROPPED)
    if given.healthcheck:
        does.append("turns its health check off, which is for another program")
    return does


_DROPPED = "leaves its entry point out, as that does not run the command that it is given"
