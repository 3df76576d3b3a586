"""What README and docs say can be relied upon: blocks, links, targets, paths and names are real; the example runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mkdocs.utils.yaml import yaml_load

import skyward as sky
from scripts.site.pages import AT_ROOT, nav_with_guides, sources
from skyward.cli.commands import STATUSES
from skyward.plugins.registry import BUILT_IN
from tests.documents import DOCUMENTS, README, ROOT, Fence, example_and_output, fences, prose
from tests.printed import Printed
from tests.unit.test_architecture import LEVELS

DEVELOPMENT = {"bench", "dev", "docs"}  # extras for working on the project itself
PAGES = {  # which others link, by these names
    "api-reference.md",
    "distributed-training.md",
    "guides/data-sharding.md",
    "guides/huggingface-finetuning.md",
    "guides/keras-training.md",
    "guides/pytorch-distributed.md",
    "guides/torch-model-roundtrip.md",
    "integrations/index.md",
    "integrations/joblib.md",
    "plugins/huggingface.md",
    "plugins/index.md",
    "plugins/jax.md",
    "plugins/torch.md",
}
HEADINGS = {  # which others link, too
    "distributed-training.md": {"pytorch", "keras", "jax", "tensorflow", "huggingface"},
    "integrations/joblib.md": {"scikitlearnpool"},
}
MADE = (".engine/", ".kube/", ".slurm/", ".stand/", ".venv/", "site/")  # by make targets; git ignores them
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PLUGINS = ROOT / "docs" / "plugins" / "index.md"


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(language: str) -> list[object]:
    """All fenced blocks in that language, as test parameters."""
    found = [(document, fence) for document in DOCUMENTS for fence in fences(document) if fence.language == language]
    return [pytest.param(fence, id=f"{name(document)}:{fence.line}") for document, fence in found]


def anchors(document: Path) -> set[str]:
    """The names that headings of a document can be linked by."""
    headings = re.findall(r"^#+ +(.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def code_words(document: Path) -> Iterator[str]:
    """What stands in backticks in the text, and the lines of shell blocks without their comments."""
    yield from re.findall(r"`([^`\n]+)`", prose(document))
    for fence in fences(document):
        if fence.language == "bash":
            yield from (line.partition("#")[0].strip() for line in fence.text.splitlines())


each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name)


@pytest.mark.parametrize("fence", blocks("python"))
def test_python_blocks_compile(fence: Fence) -> None:
    """A block can be pasted into a file."""
    compile(fence.text, "<document>", "exec")


@pytest.mark.parametrize("fence", blocks("toml"))
def test_toml_blocks_parse(fence: Fence) -> None:
    """A block can be pasted into pyproject.toml."""
    assert tomllib.loads(fence.text)


@each_document
def test_fences_are_closed_and_say_their_language(document: Path) -> None:
    """Every block has a language, so that none escapes the tests above."""
    marks = re.findall(r"^```.*$", document.read_text(encoding="utf-8"), re.MULTILINE)

    assert marks[1::2] == ["```"] * (len(marks) // 2)
    assert len(marks) == 2 * len(fences(document))
    assert {fence.language for fence in fences(document)} <= {"python", "bash", "text", "toml", "mermaid"}


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link names a file of the project, and a heading in it."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.is_relative_to(ROOT) or not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert dead == []


@each_document
def test_make_targets_exist(document: Path) -> None:
    """Every `make target` in a document exists."""
    rules = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    named = {
        word
        for text in code_words(document)
        if (words := text.split()) and words[0] == "make"
        for word in words[1:]
        if "=" not in word
    }

    assert named <= targets


@each_document
def test_named_files_exist(document: Path) -> None:
    """A path in backticks is one of the project's, from its root or from the package's."""
    paths = {word for text in code_words(document) for word in re.findall(r"^[\w.-]+/[\w./-]*$|\S+/\S+\.py\b", text)}
    gone = [path for path in paths if not any((base / path).exists() for base in (ROOT, ROOT / "skyward"))]

    assert [path for path in gone if not path.startswith(MADE)] == []


@each_document
def test_named_parts_of_the_package_exist(document: Path) -> None:
    """`sky.name`, in blocks and in the text, is a public name."""
    text = document.read_text(encoding="utf-8")
    used = set(re.findall(r"\bsky\.([A-Za-z]\w*)", text)) - {"sky"}

    assert used <= set(sky.__all__)


@each_document
def test_no_document_names_the_machine_it_was_written_on(document: Path) -> None:
    """What is pasted from a run holds no path of that machine."""
    assert re.findall(r"(?<![\w.])/(?:home|root|Users|tmp|work)\b\S*", document.read_text(encoding="utf-8")) == []


def test_every_package_is_described() -> None:
    """The list of packages is the one that imports are checked against, from the top down; folders are among them."""
    listed = re.findall(r"^(\w+) ", fences(ARCHITECTURE)[0].text, re.MULTILINE)
    level = {package: number for number, packages in enumerate(LEVELS) for package in packages}

    assert set(listed) == set(level) - {"_version", "", "__main__"}
    assert [level[package] for package in listed] == sorted((level[package] for package in listed), reverse=True)
    folders = {path.parent.name for path in (ROOT / "skyward").glob("*/__init__.py")}
    assert folders <= set(listed)


def test_every_extra_is_in_the_readme() -> None:
    """The table of extras names those of pyproject.toml that are for users, and no other."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    section = README.read_text().partition("## Extras")[2].partition("\n## ")[0]
    table = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))

    assert table == set(extras) - DEVELOPMENT, "README's table of extras has to name those of pyproject.toml"


def pages_of_the_nav(nav: list[Any]) -> list[str]:
    """The pages that the navigation names, in their order."""
    return [page for item in nav for pages in item.values() for page in pages]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """A page that no menu leads to is not found; a name without a page is a dead entry."""
    nav = nav_with_guides(yaml_load((ROOT / "mkdocs.yml").read_text())["nav"])
    named, there = pages_of_the_nav(nav), set(sources())

    assert len(named) == len(set(named)), "mkdocs.yml names a page twice under nav:"
    missing = sorted(there - set(named))
    assert not missing, f"Enter {', '.join(missing)} in mkdocs.yml, in the fitting section of nav:."
    assert set(named) <= there, f"mkdocs.yml names pages that do not exist: {sorted(set(named) - there)}"


def test_pages_that_others_link_keep_their_names() -> None:
    """The addresses of the site stay; a plugin has a page of its own or stands in the list of plugins."""
    assert set(sources()) >= PAGES | AT_ROOT.keys()
    for page, headings in HEADINGS.items():
        assert anchors(ROOT / "docs" / page) >= headings, page
    plugins = (ROOT / "docs" / "plugins" / "index.md").read_text()
    assert set(re.findall(r"^\| `sky\.plugins\.(\w+)\(\)`", plugins, re.MULTILINE)) == set(BUILT_IN)


def test_every_error_has_its_entry() -> None:
    """What it means, and what to do, in the order of the file of errors; and the exit status of the commands."""
    errors = (ROOT / "docs" / "errors.md").read_text()
    classes = [
        name
        for name, value in vars(sky.errors).items()
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == "skyward.errors"
    ]
    entries = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", errors, re.MULTILINE | re.DOTALL))

    assert list(entries) == classes, "docs/errors.md has an entry for each class of skyward/errors.py, in that order"
    assert [name for name, text in entries.items() if "**What to do.**" not in text] == []
    statuses = dict(re.findall(r"^\| (\d+) \| `(\w+)`", errors, re.MULTILINE))
    assert statuses == {str(status): error.__name__ for error, status in STATUSES}


def test_every_public_name_is_in_the_reference() -> None:
    """`sky.__all__`, the plugins, the integrations; all of them exist where the page says."""
    reference = (ROOT / "docs" / "api-reference.md").read_text()
    entries = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", reference, re.MULTILINE)}
    named = set(re.findall(r"`(?:sky\.)?(\w+)`", reference))

    public = {*sky.__all__, *BUILT_IN, *sky.integrations.__all__}
    assert public - entries - named == set(), "docs/api-reference.md lacks public names"


def test_the_readme_example_runs(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    """Pasted as it stands, the default provider swapped for plain processes, it prints what the README says."""
    monkeypatch.setattr("skyward.providers.default", sky.Local)
    code, output = example_and_output(README)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10

    exec(compile(code, "readme.py", "exec"), {"__name__": "__main__"})

    lines = printed.read().out.splitlines()
    assert sorted(lines) == sorted(output.splitlines())
    assert lines[-1] == output.splitlines()[-1]


def test_the_plugin_of_the_plugins_page_works(printed: Printed) -> None:
    """Pasted as it stands, it adds its package to the image and speaks up on the head alone."""
    block = next(fence for fence in fences(PLUGINS) if fence.language == "python")
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(compile(block.text, "plugin.py", "exec"), namespace)
    tracker = namespace["tracker"]
    assert callable(tracker)

    with sky.ComputePool(sky.Local(), nodes=2, plugins=[tracker("digits")], display="auto"):
        pass

    assert printed.read().out.splitlines() == ["[0] logging to digits"]
