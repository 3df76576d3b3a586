"""The requirement that a plugin's `version` parameter means."""

from __future__ import annotations

import re

from skyward.errors import ConfigError

LATEST = "latest"
_OPERATOR = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)")


def requirement(package: str, version: str | None, *, where: str) -> str:
    """A package with a version, as pip takes it.

    Args:
        package: its name, extras included.
        version: "latest" or None for any; a bare version such as "2.3.0" for exactly that; a specifier such as
            ">=2.3,<3" as it is.
        where: what errors call the parameter.

    Raises:
        ConfigError: it is no version and no specifier (PEP 440).
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # nodes, which import this too, need not have it

    if version is None or version == LATEST:
        return package
    given: object = version
    specifier = given.strip() if isinstance(given, str) else ""
    if specifier and not _OPERATOR.match(specifier):
        specifier = f"=={specifier}"
    try:
        parsed = SpecifierSet(specifier)
    except InvalidSpecifier:
        parsed = SpecifierSet()
    if not len(parsed):
        raise ConfigError(
            f"{where} takes 'latest', a version such as '2.3.0' or a specifier such as '>=2.3,<3'; found {version!r}."
        )
    return f"{package}{specifier.replace(' ', '')}"
