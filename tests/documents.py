"""The project's documents as tests read them: their fenced blocks, their links, the README's example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


class Fence(NamedTuple):
    """A fenced block: its language, its text, the line it starts on."""

    language: str
    text: str
    line: int


def fences(document: Path) -> list[Fence]:
    """The fenced blocks of a document."""
    text = document.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Fence(block[1], block[2], text.count("\n", 0, block.start()) + 1) for block in found]


def prose(document: Path) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```\w*\n.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def example_and_output(document: Path) -> tuple[str, str]:
    """The first Python program of a document that opens a pool, and the block after it: what it prints."""
    blocks = fences(document)
    position = next(i for i, block in enumerate(blocks) if block.language == "python" and "ComputePool" in block.text)
    return blocks[position].text, blocks[position + 1].text
