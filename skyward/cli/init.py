"""`skyward init`: a program with its image and its test, to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from skyward.errors import ConfigError

_PROGRAM = '''\
"""The mean of many rows, each node taking a part: `python main.py`."""

import skyward as sky

# What the nodes have beside Python: packages (pip=["numpy"]), Debian's (apt=["git"]), and more, see `help(sky.Image)`.
# `skyward build main.py` builds it beforehand.
image = sky.Image(pip=[])


@sky.compute
def total(rows: list[float]) -> tuple[float, int]:
    part = sky.shard(rows)  # this node's; all of them where there is one
    print(f"{len(part)} rows here")
    return sum(part), len(part)


def main(provider: sky.providers.Provider | None = None, nodes: int = 2) -> float:
    """Run on as many nodes: containers of this machine, unless another provider is given, such as sky.Local()."""
    with sky.ComputePool(provider, nodes=nodes, image=image) as pool:
        parts = total([float(n) for n in range(1000)]) @ pool
    return sum(s for s, _ in parts) / sum(n for _, n in parts)


if __name__ == "__main__":
    print(main())
'''
_TEST = '''\
"""`pip install pytest`, then `python -m pytest`: without an engine, in this process and in plain ones."""

import skyward as sky

import main


def test_a_part() -> None:
    """As on the only node of a pool."""
    assert main.total.local([1.0, 2.0, 3.0]) == (6.0, 3)


def test_all_parts() -> None:
    """On two nodes, which are processes of this machine."""
    assert main.main(sky.Local()) == 499.5
'''
FILES = {"main.py": _PROGRAM, "test_main.py": _TEST}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def command(folder: Path) -> int:
    """Write a program with its image, and a test of it.

    They are main.py and test_main.py, in FOLDER, by default this one.
    """
    if there := [str(folder / name) for name in FILES if (folder / name).exists()]:
        are = "exists" if len(there) == 1 else "exist"
        raise ConfigError(f"{' and '.join(there)} {are}, and nothing was written. Name a new folder: skyward init NAME")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to: {error.strerror}.") from error
    into = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"skyward: now `{into}python main.py`, or `{into}python -m pytest` where no engine is", err=True)
    return 0
