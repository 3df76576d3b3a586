"""Runs the scripts of a plan's steps below a folder in place of `/run`, with a uv that only notes its words."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import dockerfile

from skyward.image import Plan, steps

SCRIPTS = Path(str(steps.__file__)).with_name("scripts")
_UV = '#!/bin/sh\nprintf \'%s\\0\' "$#" "$@" >> "$(dirname "$0")/said"\n'


def uv_calls(plan: Plan, folder: Path, *names: str) -> list[list[str]]:
    """The words of each call of uv by the steps of these names; "install" and "local" where none are given."""
    uv = folder / "run/uv/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(_UV)
    uv.chmod(0o755)
    (folder / "run/steps").mkdir()
    for script in SCRIPTS.glob("*.sh"):
        # times and modes of this machine's files stay as they are
        text = re.sub(r"^(\s*)find ", r"\1true find ", _moved(script.read_text(), folder), flags=re.MULTILINE)
        (folder / "run/steps" / script.name).write_text(text)
    for each in dockerfile.parse_string(plan.dockerfile):
        found = re.match(r"sh /run/steps/step.sh (\w+)", each.value[0]) if each.cmd.upper() == "RUN" else None
        if found and found[1] in (names or ("install", "local")):
            _mount(plan, each.flags, folder)
            subprocess.run(["sh", "-c", _moved(each.value[0], folder)], check=True)
    said = (uv.parent / "said").read_bytes() if (uv.parent / "said").exists() else b""
    return _calls(said.decode("utf-8", "surrogateescape").split("\0")[:-1])


def _moved(text: str, folder: Path) -> str:
    return text.replace("/run/", f"{folder}/run/")


def _mount(plan: Plan, flags: tuple[str, ...], folder: Path) -> None:
    """Put the plan's files where the flags of a step mount them."""
    shutil.rmtree(folder / "run/requirements", ignore_errors=True)
    for flag in flags:
        if mount := re.search(r"type=bind,source=([^,]+),target=(/run/[^,]+)", flag):
            for path, text in plan.files:
                if path == mount[1] or path.startswith(f"{mount[1]}/"):
                    target = Path(f"{folder}{mount[2]}{path.removeprefix(mount[1])}")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text)


def _calls(said: list[str]) -> list[list[str]]:
    calls = []
    while said:
        count = int(said[0])
        calls.append(said[1 : count + 1])
        said = said[count + 1 :]
    return calls
