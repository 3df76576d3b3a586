"""Checks the built site: links lead to a page and a heading that exist, and nothing is loaded from another host."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src"}


class _Document(HTMLParser):
    """The names that a page can be linked by, what it links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.names.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"} and "href" in values:
            self.loaded.append(values["href"])
        if tag in _LOADED and _LOADED[tag] in values:
            self.loaded.append(values[_LOADED[tag]])


def problems(site: Path) -> list[str]:
    """One sentence for each dead link and each address of another host that a page loads."""
    documents = {path: _Document(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, document in documents.items():
        page = path.relative_to(site).as_posix()
        found += [
            f"{page} loads {address} from another host." for address in document.loaded if urlsplit(address).netloc
        ]
        found += [
            f"{page} links {link}, and there is no such {missing}."
            for link in {*document.links, *document.loaded}
            if (missing := _missing(link, path, site, documents))
        ]
    return sorted(found)


def _missing(link: str, page: Path, site: Path, documents: dict[Path, _Document]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    base = site if parts.path.startswith("/") else page.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return "page"
    if parts.fragment and target in documents and unquote(parts.fragment) not in documents[target].names:
        return "heading"
    return None
