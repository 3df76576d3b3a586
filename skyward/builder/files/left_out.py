"""The files of a folder that are left out, and those that are refused.

Files matched by `.gitignore` and `.dockerignore` are left out, with the rules of git and Docker. Files that usually
contain passwords, keys or tokens are refused by their name; private keys also by their content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.files.ignore import Ignore
from skyward.errors import ConfigError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_LARGEST = 256 * 1024  # bytes; files of credentials are smaller

# all files below these folders count
_FOLDERS = {
    "/.ssh/": "a file of SSH",
    "/.aws/": "a file of the AWS settings",
    "/.gnupg/": "a file of GnuPG",
    "/.kube/": "a file of the Kubernetes settings",
    "/.azure/": "a file of the Azure settings",
    "/.config/gcloud/": "a file of the Google Cloud settings",
    "/.docker/config.json": "logins of registries",
}
_NAMES = (
    (r"\.env(\..+)?|.+\.env|\.envrc", "environment variables, often with passwords"),
    (r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?(\..+)?", "a private key"),
    (r".+\.(key|ppk|p8|p12|pfx|jks|keystore)", "a private key"),
    (r".+\.kdbx", "a store of passwords"),
    (r"\.npmrc|\.yarnrc(\.yml)?|\.?pip\.(conf|ini)|\.condarc", "settings, often with a password or token"),
    (r"[._]netrc|\.git-credentials|\.pypirc|\.pgpass|\.my\.cnf|\.htpasswd", "logins"),
    (r"\.dockercfg|\.dockerconfigjson", "logins of registries"),
    (r"kubeconfig(\..+)?|.+\.kubeconfig", "access to a Kubernetes cluster"),
    (r"\.boto|\.s3cfg|\.databrickscfg|\.vault-token|kaggle\.json", "access to a service"),
    (r"(secrets?|credentials?)(\.(toml|ya?ml|json|ini|csv|txt))?", "credentials"),
    (r".+\.tfstate(\..+)?", "a Terraform state, often with passwords"),
)
_ANY_NAME = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _NAMES), re.DOTALL)
_HARMLESS = re.compile(r".+\.(pub|pyi?|example|sample|template|tmpl|dist)|(example|sample|template)\.env", re.DOTALL)

_SOURCE = {".py", ".pyi", ".pyx", ".ipynb", ".md", ".rst"}  # code and documents contain examples of keys
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----")


@dataclass(frozen=True, slots=True)
class DockerRules:
    """Patterns in Docker's format, and the folder that their paths are relative to."""

    folder: Path
    ignore: Ignore

    def leaves_out(self, path: Path) -> bool:
        """Return whether the patterns exclude a path; they do not apply outside the folder."""
        return path != self.folder and path.is_relative_to(self.folder) and self.ignore(_relative(path, self.folder))


@dataclass(frozen=True, slots=True)
class GitRules:
    """The rules of one `.gitignore` for paths below its folder."""

    folder: Path
    spec: GitIgnoreSpec

    def says(self, path: Path, *, is_folder: bool) -> bool | None:
        """Return whether a path is excluded; None if no pattern of this file matches."""
        return self.spec.check_file(_relative(path, self.folder) + "/" * is_folder).include


def git_rules(folder: Path) -> tuple[GitRules, ...]:
    """Return the rules of the `.gitignore` in a folder; empty if there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    lines = _lines(folder / ".gitignore")
    if not any(lines):
        return ()
    from pathspec import GitIgnoreSpec  # loaded only if there is something to ignore: it takes 15 ms

    def is_pattern(line: str) -> bool:
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error):  # git skips invalid patterns such as "!" and "[z-a]"
            return False
        return True

    return (GitRules(folder, GitIgnoreSpec.from_lines(filter(is_pattern, lines))),)


def git_rules_above(start: Path, root: Path) -> tuple[GitRules, ...]:
    """Return the rules for a folder from outside it: from the top of its repository, or the root, down to its parent.

    If they exclude the folder itself, they do not apply to its files, and none are returned.
    """
    tops = [folder for folder in start.parents if (folder / ".git").exists()]
    top = tops[0] if tops else root
    if (start / ".git").exists() or top == start or not start.is_relative_to(top):
        return ()
    rules: tuple[GitRules, ...] = ()
    folders = [top, *reversed([folder for folder in start.parents if folder != top and folder.is_relative_to(top)])]
    for folder, inner in zip(folders, [*folders[1:], start], strict=True):
        rules += git_rules(folder)
        if is_ignored(rules, inner, is_folder=True):
            return ()
    return rules


def is_ignored(rules: Sequence[GitRules], path: Path, *, is_folder: bool) -> bool:
    """Return whether git excludes a path whose parent folder it does not exclude; the innermost rule applies."""
    words = (each.says(path, is_folder=is_folder) for each in reversed(rules))
    return next((word for word in words if word is not None), False)


def docker_rules(start: Path, root: Path) -> Iterator[DockerRules]:
    """Yield the `.dockerignore` rules of a folder and of the root, except those that exclude the folder itself.

    Raises:
        ConfigError: one cannot be read, or a pattern is invalid.
    """
    for folder in dict.fromkeys((root, start)):
        file = folder / ".dockerignore"
        lines = [line for line in _lines(file) if not line.startswith("#")]
        if not start.is_relative_to(folder) or not any(line.strip() for line in lines):
            continue
        try:
            rules = DockerRules(folder, Ignore(lines))
        except ConfigError as error:
            raise ConfigError(f"{file} cannot be read: {str(error).removeprefix('Image: excludes ')}") from None
        if not rules.leaves_out(start):
            yield rules


def _lines(file: Path) -> list[str]:
    try:
        if not file.is_file():
            return []
        return [line.rstrip("\r") for line in file.read_text("utf-8-sig", "surrogateescape").split("\n")]
    except OSError as error:
        raise ConfigError(
            f"{file} says which files of Image(includes=...) to leave out, but cannot be read: {error.strerror}."
        ) from None


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def credential_kind(name: str, path: Path) -> str | None:
    """Describe for users the kind of credentials that a file seems to contain; None for an ordinary file.

    Args:
        name: the informative part of its path, with `/` between the parts.
        path: its location.

    Raises:
        OSError: it cannot be read.
    """
    lowered = f"/{name}".lower()
    for folder, kind in _FOLDERS.items():
        if folder in lowered or lowered.endswith(folder):
            return kind
    last = lowered.rpartition("/")[2]
    if _ANY_NAME.fullmatch(last) and not _HARMLESS.fullmatch(last):
        return next(kind for pattern, kind in _NAMES if re.fullmatch(pattern, last, re.DOTALL))
    if path.suffix.lower() in _SOURCE or path.stat().st_size > _LARGEST:
        return None
    return "a private key" if _KEY.search(path.read_bytes()) else None
