"""The machine's own apt sources, reduced to its distribution's: what a base made from packages is made from."""

import re
from pathlib import Path

from .console import SetupError

_APT = Path("/etc/apt")
_ONE_LINE = re.compile(r"^deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)([^#\n]*)", re.MULTILINE)
_FIELDS = {"arch": "Architectures", "signed-by": "Signed-By", "trusted": "Trusted"}


def machine_sources(codename: str, folder: Path = _APT) -> str:
    """Return the distribution's entries of all apt source files, as deb822 text.

    Raises:
        SetupError: there are none, or one has a password, which would lie in the image.
    """
    stanzas: list[str] = []
    for path in filter(Path.is_file, [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]):
        for options, uri, suite, components in _ONE_LINE.findall(path.read_text()):
            fields = [each.partition("=") for each in options.split()]
            more = "".join(f"{_FIELDS[name]}: {value}\n" for name, _, value in fields if name in _FIELDS)
            stanzas.append(f"Types: deb\nUris: {uri}\nSuites: {suite}\nComponents: {components.strip()}\n{more}")
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
        text = re.sub(r"^[\w-]+:", lambda name: name[0].title(), text, flags=re.MULTILINE)
        stanzas += (f"{stanza.strip()}\n" for stanza in re.split(r"\n[ \t]*\n", text))
    own = re.compile(rf"^Suites:.*\b{codename or '-'}\b", re.MULTILINE)
    found = "\n".join(stanza for stanza in stanzas if own.search(stanza) and "\nEnabled: no" not in f"\n{stanza}")
    if not found or re.search(r"://[^/\s]*@", found):
        raise SetupError(
            f"no base image can be made from this machine's packages: {folder} has no source of the release "
            f"{codename}, or one with a password, which belongs into /etc/apt/auth.conf.d."
        )
    return found
