"""The documentation as a site: it builds without a warning, its links lead somewhere, no other host is asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from scripts.site.pages import sources
from skyward.cli.commands import cli
from tests.conftest import ROOT

BUILD_S = 280.0  # a few seconds on a quiet machine; the first time npm fetches the script for diagrams


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by what `make docs` runs."""
    into = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the theme's notice of its successor
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


def text_of(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text(encoding="utf-8")


def commands(group: click.Command, name: str) -> Iterator[str]:
    """The full names of a command and of those below it."""
    yield name
    if isinstance(group, click.Group):
        for each in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), each)
            assert command is not None
            yield from commands(command, f"{name} {each}")


def test_every_page_is_built(site: Path) -> None:
    """With diagrams as diagrams, and the script that draws them on those pages alone."""
    names = [page.removesuffix("index.md").removesuffix(".md") for page in sources()]
    assert [name for name in names if not (site / name / "index.html").exists()] == []

    steps = text_of(site, "first-steps")
    assert steps.count('<pre class="mermaid">') == 3
    order = ("javascripts/mermaid.min.js", "javascripts/diagrams.js", "assets/javascripts/bundle")
    assert sorted(order, key=steps.index) == list(order)
    assert "mermaid.min.js" not in text_of(site, "errors")
    assert (site / "javascripts" / "mermaid.min.js").stat().st_size > 1_000_000
    loaded = [
        each for page in site.rglob("*.html") for each in re.findall(r'<script[^>]* src="(http[^"]*)', page.read_text())
    ]
    assert loaded == []


def test_the_reference_shows_parameters_and_commands(site: Path) -> None:
    """Defaults of the API, and every command with its options."""
    api = text_of(site, "api-reference")
    assert 'id="skyward._pool.pool.ComputePool"' in api
    assert "provision_timeout" in api
    assert "&gt;&gt;&gt;" in api  # examples are code, and not quotations within quotations
    assert "<blockquote>" not in api
    assert 'id="skyward._pool.pool.ComputePool.map"' in api

    shown = set(re.findall(r'<h\d id="[^"]*">(skyward[^<]*)<', text_of(site, "cli")))
    assert shown == set(commands(cli, "skyward")) - {"skyward"}
