"""Commands that print or write a document and do nothing else: a program to start from (`skyward init`), and a file
with which others start nodes (`skyward compose`), for Docker Compose 2 and 1.29.
"""

from __future__ import annotations

import json
import shlex
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


_FILES = {"main.py": _PROGRAM, "test_main.py": _TEST}
_NODE_DOCKERFILE = "dockerfiles/bases/node.Dockerfile"  # in a clone of skyward; `build` builds from it
_TEMPLATE = """\
# {nodes} and a registry, written by `skyward compose {options}`.
# A pool with provider=sky.Compose("compose.yaml") brings it up and down, or uses it while it is up.
# No secret is in it: a pool hands its key to its nodes through the Docker engine.
x-node: &node
  image: ${{SKYWARD_IMAGE:-skyward:node}}
{build}\
  command: {command}
  environment:
    SKYWARD_STANDBY_LEASE: ${{SKYWARD_STANDBY_LEASE:-}}
  labels:
    skyward.pool: ${{SKYWARD_POOL:-standby}}
    skyward.user: ${{SKYWARD_USER:-}}
{gpus}  user: {user}
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  working_dir: {work_dir}
  init: true
  shm_size: 1gb

services:
  registry:
    image: ${{SKYWARD_REGISTRY_IMAGE:-registry:2}}
    ports:
      - "127.0.0.1:${{SKYWARD_REGISTRY_PORT:-5000}}:5000"
    volumes:
      - registry:/var/lib/registry

{services}
volumes:
  registry: {{}}
"""
_BUILD = """\
  build:
    context: {context}
    dockerfile: {dockerfile}
    args:
      BASE: ${{SKYWARD_BASE:-python:3.11-slim}}
      PACKAGES: ${{SKYWARD_PACKAGES:-scikit-learn}}
"""
_ALIKE = """\
  node:
    <<: *node
    deploy:
      replicas: {count}
"""
# all containers of a service reserve the same devices, so each node with its own GPUs is a service
_WITH_GPUS = """\
  {name}:
    <<: *node
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: {gpus}
              capabilities: [gpu]
"""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> int:
    """Write a program with its image, and a test of it.

    They are main.py and test_main.py, in FOLDER, by default this one.
    """
    if there := [str(folder / name) for name in _FILES if (folder / name).exists()]:
        are = "exists" if len(there) == 1 else "exist"
        raise ConfigError(f"{' and '.join(there)} {are}, and nothing was written. Name a new folder: skyward init NAME")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to: {error.strerror}.") from error
    into = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"skyward: now `{into}python main.py`, or `{into}python -m pytest` where no engine is", err=True)
    return 0


@click.command()
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="How many nodes.")
@click.option("--gpus", type=click.IntRange(min=1), default=None, help="NVIDIA GPUs that each node has for itself.")
@click.option("--build", metavar="FOLDER", help="Build the nodes' image from this clone of skyward.")
def compose(nodes: int, gpus: int | None, build: str | None) -> int:
    """Print a compose file that brings up nodes for pools.

    `skyward compose --nodes 3 > compose.yaml` writes it. A pool with provider=sky.Compose("compose.yaml")
    brings it up and down by itself, or takes its nodes while it is up.
    """
    if build is not None and not (Path(build) / _NODE_DOCKERFILE).is_file():
        raise ConfigError(f"--build names a clone of skyward; {build} has no {_NODE_DOCKERFILE}.")
    click.echo(compose_file(nodes, gpus or 0, build), nl=False)
    return 0


def compose_file(nodes: int, gpus: int = 0, build: str | None = None) -> str:
    """Return the text of a compose file with nodes and a registry.

    Args:
        nodes: number of nodes.
        gpus: number of NVIDIA GPUs reserved for each node; they are assigned in the machine's order.
        build: directory of a clone of skyward, from which compose builds a missing image of nodes; None if it is made
            elsewhere.
    """
    from skyward.model.rights import ACCOUNT_ID, WORK_DIR
    from skyward.nodes.container import COMMAND
    from skyward.providers.compose_project import USER_VAR

    given = {"--nodes": str(nodes)}
    given |= {"--gpus": str(gpus)} if gpus else {}
    given |= {"--build": build} if build else {}
    return _TEMPLATE.format(
        nodes=f"{nodes} node{'s' * (nodes != 1)}",
        options=shlex.join(word for pair in given.items() for word in pair),
        build=_BUILD.format(context=json.dumps(build), dockerfile=_NODE_DOCKERFILE) if build else "",
        command=json.dumps([COMMAND[0], "-m", "skyward.runner.entry.standby"]),
        work_dir=WORK_DIR,
        user=json.dumps(f"${{{USER_VAR}:-{ACCOUNT_ID}:{ACCOUNT_ID}}}"),
        gpus=f'    skyward.gpus: "{gpus}"\n' if gpus else "",
        services=_services(nodes, gpus),
    )


def _services(nodes: int, gpus: int) -> str:
    if not gpus:
        return _ALIKE.format(count=nodes)
    width = len(str(nodes - 1))  # pools take services in the order of their names
    return "\n".join(
        _WITH_GPUS.format(
            name=f"node-{node:0{width}}", gpus=json.dumps([str(node * gpus + number) for number in range(gpus)])
        )
        for node in range(nodes)
    )
