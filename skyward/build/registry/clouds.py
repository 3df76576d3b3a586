"""Registries of Google and of Azure: their own programs are asked where Docker's configuration names none.

Both clouds document a credential program to be entered into `config.json`, and a command that gives a token for a day
or an hour. Either is enough here, if the user is logged in to the cloud. For Amazon's registry see `ecr`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass

from skyward.build.registry.credentials import Credentials, ask_program
from skyward.errors import RegistryError

_LIMIT_S = 60  # both command lines are Python programs that ask a service


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cloud:
    """A cloud's registries: their hosts, its credential programs, its command line, and what says how to log in."""

    hosts: re.Pattern[str]
    programs: tuple[str, ...]
    command: tuple[str, ...]
    remedy: str


_CLOUDS = (
    _Cloud(
        hosts=re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io"),
        programs=("docker-credential-gcloud", "docker-credential-gcr"),
        command=("gcloud", "auth", "print-access-token"),
        remedy="Log in with `gcloud auth login`, then `gcloud auth configure-docker {registry}`.",
    ),
    _Cloud(
        hosts=re.compile(r"(?P<name>[a-zA-Z0-9]+)\.azurecr\.(?:io|cn|us)"),
        programs=("docker-credential-acr-env", "docker-credential-acr"),
        command=("az", "acr", "login", "--name", "{name}", "--expose-token", "--output", "json"),
        remedy="Log in with `az login`, then `az acr login --name {name}`.",
    ),
)
# the names that go with tokens, as both clouds document them
_GOOGLE_USER = "oauth2accesstoken"
_AZURE_USER = "00000000-0000-0000-0000-000000000000"


def cloud_credentials(registry: str) -> Credentials | None:
    """What the cloud that a registry belongs to gives for it; None for others, and where none of its programs is here.

    Raises:
        RegistryError: the cloud's program fails, mostly because nobody is logged in.
    """
    for cloud in _CLOUDS:
        if found := cloud.hosts.fullmatch(registry):
            program = next((name for name in cloud.programs if shutil.which(name)), None)
            if program:
                return ask_program(program, registry)
            if shutil.which(cloud.command[0]):
                return _token(cloud, registry, found.groupdict().get("name") or "")
    return None


def _token(cloud: _Cloud, registry: str, name: str) -> Credentials:
    """Credentials by the cloud's command line."""
    words = [word.format(name=name) for word in cloud.command]
    remedy = cloud.remedy.format(registry=registry, name=name)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"did not answer in {_LIMIT_S} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise RegistryError(f"`{' '.join(words)}`, asked for a token for {registry}, {why}.", remedy) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RegistryError(
            f"`{' '.join(words)}`, asked for a token for {registry}, ended with status {done.returncode}: {last}.",
            remedy,
        )
    if words[0] == "gcloud":
        return Credentials(username=_GOOGLE_USER, password=done.stdout.strip())
    try:
        return Credentials(username=_AZURE_USER, password=str(json.loads(done.stdout)["accessToken"]))
    except (ValueError, KeyError, TypeError):
        raise RegistryError(f"`{' '.join(words)}` gave no token for {registry}.", remedy) from None
