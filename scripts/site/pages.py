"""Pages of the site that are made from other files of the project, and the links between files and pages.

mkdocs calls the functions of this module (`hooks` in mkdocs.yml). README, changelog, security and contributing pages
are the files at the root; each program of `examples/guides` that has no page of its own in `docs/guides` gets one that
shows it. Links in all of them are those of the repository, as its readers see them; here they become links of pages.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site import mermaid

ROOT = Path(__file__).parents[2]
GUIDES = "examples/guides"
# page -> the file that it is made from
AT_ROOT = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "index.md": "README.md",
    "security.md": "SECURITY.md",
}
_SCRIPT = "javascripts/mermaid.min.js"
_SETTINGS = "javascripts/diagrams.js"  # of that script
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def guides() -> dict[str, Path]:
    """The page of each guide, in the order of the programs' numbers."""
    programs = sorted((ROOT / GUIDES).glob("[0-9]*.py"))
    return {f"guides/{program.stem.partition('_')[2].replace('_', '-')}.md": program for program in programs}


def sources() -> dict[str, str]:
    """The file of the project that each page shows, both as paths."""
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    programs = {page: program.relative_to(ROOT).as_posix() for page, program in guides().items()}
    return AT_ROOT | programs | {page: f"docs/{page}" for page in written}


def nav_with_guides(nav: list[Any]) -> list[Any]:
    """The navigation, with the guides that it does not name at the end of its section of guides."""
    named = str(nav)
    missing = [page for page in guides() if page not in named]
    return [
        {title: [*pages, *missing] if title == "Guides" else pages} for item in nav for title, pages in item.items()
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Enter the guides in the navigation."""
    config.nav = nav_with_guides(config.nav or [])
    return config


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in `docs`, and the script that draws diagrams."""
    for page, source in AT_ROOT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, program in guides().items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=guide_page(program)))
    files.append(File.generated(config, _SCRIPT, abs_src_path=str(mermaid.script())))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links lead to pages where they lead to files of the repository."""
    known = sources()
    here = page.file.src_uri
    pieces = _FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else with_links(piece, here, known) for piece in pieces)


def on_post_page(output: str, /, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Load the script that draws diagrams on pages that have some, before the theme's own, which uses it then."""
    if 'class="mermaid"' not in output:
        return output
    addresses = (posixpath.relpath(path, page.url or ".") for path in (_SCRIPT, _SETTINGS))
    scripts = "".join(f'<script src="{address}"></script>' for address in addresses)
    before, theme, after = output.rpartition('<script src="')
    return before + scripts + theme + after


def with_links(text: str, here: str, known: dict[str, str]) -> str:
    """A text of the page `here`, its links leading to pages; of links to files that have none the text remains."""
    page_of = {source: page for page, source in known.items()} | {
        GUIDES: "first-steps.md",
        "docs/guides": "first-steps.md",
    }

    def link(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        path, mark, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        source = posixpath.normpath(posixpath.join(posixpath.dirname(known[here]), path))
        if source not in page_of:
            return words if (ROOT / source).exists() else found[0]
        return f"[{words}]({posixpath.relpath(page_of[source], posixpath.dirname(here) or '.')}{mark}{anchor})"

    return _LINK.sub(link, text)


def guide_page(program: Path) -> str:
    """The page of a guide without a page of its own: what its docstring says, and the program."""
    text = program.read_text(encoding="utf-8")
    first, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    title = program.stem.partition("_")[2].replace("_", " ").capitalize()
    path = f"{GUIDES}/{program.name}"
    usage = f"```text\n{rest.strip()}\n```\n\n" if rest.strip() else ""
    return f"# {title}\n\n{first}\n\n{usage}```bash\npython {path}\n```\n\n```python\n{text.rstrip()}\n```\n"
