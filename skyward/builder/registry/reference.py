"""Names of images in registries, parsed as by docker."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skyward.errors import ConfigError
from skyward.model.image_fields import REFERENCE

DOCKER_HUB = "docker.io"
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
        ConfigError: it is not a reference, or contains a login.
    """
    if _LOGIN.match(text):
        shown = _LOGIN.sub(r"\1***@", text)
        raise ConfigError(f"{shown!r} is not the name of an image: it contains a login; give that to `docker login`.")
    whole = re.sub("^https?://", "", text)
    if not REFERENCE.fullmatch(whole):
        raise ConfigError(f"{text!r} is not the name of an image, such as registry.example.com/team/name:tag.")
    name, _, digest = whole.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    registry, repository = _split_registry(f"{folder}{slash}{last}")
    return Reference(registry=registry, repository=repository, tag=tag or ("" if digest else "latest"), digest=digest)


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
