"""Names of images in registries, parsed as by docker, but without guessing missing or wrong parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skyward.errors import ConfigError

DOCKER_HUB = "docker.io"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255
_LOGIN = re.compile(r"^(\w+://(?=[^/\s]*@)|(?=[^/\s]*@[^/@\s]+/))[^/\s]*@(?!sha256:)")  # in front of a registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One image in a registry.

    Attributes:
        registry: host and port as in the name; "docker.io" if the name has none.
        repository: path within the registry.
        tag: "latest" if neither tag nor digest was given; "" with a digest.
        digest: `sha256:...`, or "".
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository, as `docker` accepts them."""
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Parse a reference. A leading `http://` or `https://` is ignored: the engine knows how it reaches a registry.

    Raises:
        ConfigError: it is not a reference; the message names the invalid part.
    """
    if _LOGIN.match(text):
        raise _wrong(text, "it contains a login; give that to `docker login`")
    name, at, digest = re.sub("^https?://", "", text).partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, "the @ must be followed by sha256: and 64 hexadecimal digits")
    registry, path = _split_registry(name)
    repository, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, f"{tag!r} is not a tag: letters, digits, '_', '.' and '-', at most 128")
    if not _REGISTRY.fullmatch(registry):
        raise _wrong(text, f"{registry!r} is not a registry: a host name, and a port if it has one")
    if not _REPOSITORY.fullmatch(repository) or len(f"{registry}/{repository}") > _LONGEST_NAME:
        why = "parts of lower-case letters and digits, with single '.', '_', '__' or '-' in them, separated by '/'"
        raise _wrong(text, f"{repository!r} is not a repository: {why}")
    tag = tag or ("" if digest else "latest")
    return Reference(registry=registry, repository=repository, tag=tag, digest=digest)


def with_tag(where: str, tag: str) -> str:
    """Return the repository that `--push` names, with a tag added unless it has one.

    Raises:
        ConfigError: it is not the name of a repository.
    """
    reference = parse_reference(where)
    has_tag = reference.digest or where.endswith(f":{reference.tag}")
    return where if has_tag else f"{where}:{tag}"


def _split_registry(name: str) -> tuple[str, str]:
    """Split a name into registry and path: the first part is a registry if it looks like a host."""
    first, slash, rest = name.partition("/")
    is_host = slash and (any(sign in first for sign in ".:[") or first == "localhost" or first != first.lower())
    registry, path = (first, rest) if is_host else (DOCKER_HUB, name)
    if registry in (DOCKER_HUB, f"index.{DOCKER_HUB}"):
        return DOCKER_HUB, path if "/" in path else f"library/{path}"
    return registry, path


def _wrong(text: str, why: str) -> ConfigError:
    shown = _LOGIN.sub(r"\1***@", text)
    return ConfigError(f"{shown!r} is not the name of an image: {why}. An example: registry.example.com/team/name:tag.")
