"""The machine's own apt sources, reduced to its distribution's: what a base made from packages is made from."""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from .console import SetupError

_APT = Path("/etc/apt")
_KEPT_FIELDS = ("types", "uris", "suites", "components", "architectures", "signed-by", "trusted", "check-valid-until")
# One-line options whose deb822 field is not the same word.
_OPTION_FIELDS = {"arch": "architectures"}


def machine_sources(codename: str, folder: Path = _APT) -> str:
    """The distribution's entries of all apt source files, as deb822 text in a stable order; empty without any."""
    entries: list[str] = []
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in (path for path in lists if path.is_file()):
        entries += from_one_line(path.read_text(), codename)
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        entries += from_deb822(path.read_text(), codename)
    return "\n".join(dict.fromkeys(entries))


def from_deb822(text: str, codename: str) -> list[str]:
    """The binary-package stanzas of a .sources file whose suites belong to the release."""
    stanzas = (_fields(stanza) for stanza in re.split(r"\n[ \t]*\n", text))
    return [
        stanza_of(fields, codename)
        for fields in stanzas
        if "deb" in fields.get("types", "").split()
        and fields.get("enabled", "yes") != "no"
        and _suites(fields, codename)
    ]


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line[0].isspace():
            fields[name] = f"{fields.get(name, '')}\n{line}"
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def from_one_line(text: str, codename: str) -> list[str]:
    """The `deb` lines of a .list file whose suite belongs to the release."""
    form = re.compile(
        r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>[^#\n]*)", re.MULTILINE
    )
    kept = []
    for found in form.finditer(text):
        fields = {"uris": found["uri"], "suites": found["suite"], "components": found["rest"].strip()}
        for option in (found["options"] or "").split():
            name, _, value = option.partition("=")
            fields[_OPTION_FIELDS.get(name, name)] = value.replace(",", " ")
        if _suites(fields, codename):
            kept.append(stanza_of(fields, codename))
    return kept


def _suites(fields: Mapping[str, str], codename: str) -> str:
    suites = fields.get("suites", "").split()
    return " ".join(suite for suite in suites if re.split(r"[-/]", suite)[0] == codename)


def stanza_of(fields: Mapping[str, str], codename: str) -> str:
    """One deb822 stanza with the fields that decide what is installed."""
    chosen = {**fields, "types": "deb", "suites": _suites(fields, codename)}
    return "".join(f"{name.title()}: {chosen[name]}\n" for name in _KEPT_FIELDS if chosen.get(name))


def check(text: str, codename: str) -> None:
    """Raise when nothing can be made from these sources, or when they hold a password: it would lie in the image."""
    if not text:
        raise SetupError(
            f"no apt source of this machine names the release {codename}, so no base image can be made from its "
            f"packages. Add the distribution's own sources for {codename} to {_APT / 'sources.list.d'}."
        )
    for uri in re.findall(r"\S+://\S+", text):
        if "@" in urlsplit(uri).netloc:
            raise SetupError(
                f"the apt source at {urlsplit(uri).hostname} has a user name in its address, which would end up in "
                "the base image. Move it to a file in /etc/apt/auth.conf.d, which stays on this machine."
            )
