"""Rows as aligned columns on standard output."""

from __future__ import annotations

from collections.abc import Sequence

import click


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows, the first of which is the heading, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
