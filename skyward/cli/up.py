"""`skyward up`: a file with which others bring up nodes; so far a compose file, for Docker Compose 2 and 1.29."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from skyward.builder.registry.reference import parse_reference
from skyward.errors import ConfigError
from skyward.model.rights import ACCOUNT_ID, DEFAULT, WORK_DIR, Rights
from skyward.nodes.container import COMMAND
from skyward.providers.compose.project import USER_VAR

IMAGE = "skyward:node"  # default of SKYWARD_IMAGE, which nodes run that no pool brings up
DOCKERFILE = "dockerfiles/bases/node.Dockerfile"  # in a clone of skyward; what `build` makes of it
_NO_RIGHTS = Rights()
_TEMPLATE = """\
# {nodes} and a registry, written by `skyward up {options}`. Change the command, not this file.
# A pool with provider=sky.Compose("compose.yaml") brings it up and down, or uses it while it is up.
# No secret is in it: a pool hands its key to its nodes through the Docker engine.
x-node: &node
  image: ${{SKYWARD_IMAGE:-{image}}}
{build}\
  command: {command}
  environment:
    SKYWARD_STANDBY_LEASE: ${{SKYWARD_STANDBY_LEASE:-}}
  labels:
    skyward.pool: ${{SKYWARD_POOL:-standby}}
    skyward.user: ${{SKYWARD_USER:-}}
{gpus}{rights}  working_dir: {work_dir}
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
# all containers of a service reserve the same devices, so each node with GPUs of its own is a service
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
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="How many nodes.")
@click.option("--compose", "as_compose", is_flag=True, help="Write a compose file to standard output.")
@click.option("--image", default=IMAGE, show_default=True, help="What nodes run that no pool brings up.")
@click.option("--gpus", type=click.IntRange(min=1), default=None, help="NVIDIA GPUs that each node has for itself.")
@click.option("--user", help="Whom functions run as, in place of the image's own user: 'app', '1000:100'.")
@click.option("--privileges", help="Capabilities that they can have, as 'SYS_PTRACE,NET_ADMIN', or 'default'.")
@click.option("--build", metavar="FOLDER", help="Have compose build that image from this clone of skyward.")
def command(
    nodes: int,
    as_compose: bool,
    image: str,
    gpus: int | None,
    user: str | None,
    privileges: str | None,
    build: str | None,
) -> int:
    """Write a compose file that brings up nodes for pools.

    `skyward up --nodes 3 --compose > compose.yaml` writes it. A pool with provider=sky.Compose("compose.yaml")
    brings it up and down by itself, or takes its nodes while it is up.
    """
    if not as_compose:
        raise ConfigError("skyward up writes a file and starts nothing: say --compose for a compose file.")
    parse_reference(image)
    if build is not None and not (Path(build) / DOCKERFILE).is_file():
        raise ConfigError(f"--build names a clone of skyward; {build} has no {DOCKERFILE}.")
    wanted = privileges if privileges == DEFAULT else [each for each in (privileges or "").split(",") if each]
    rights = Rights.of("skyward up", user, wanted)
    click.echo(compose_file(nodes, image, gpus or 0, build, rights), nl=False)
    return 0


def compose_file(
    nodes: int, image: str = IMAGE, gpus: int = 0, build: str | None = None, rights: Rights = _NO_RIGHTS
) -> str:
    """The text of a file with nodes and a registry.

    Args:
        nodes: number of nodes.
        image: what nodes run that no pool brings up.
        gpus: number of NVIDIA GPUs that each node has for itself; they are assigned in the machine's order.
        build: folder of a clone of skyward, from which compose builds `image` where it is missing; None for an image
            that is made elsewhere.
        rights: the user that functions run as, and their capabilities.
    """
    given = {"--nodes": str(nodes), "--compose": None}
    given |= {"--image": image} if image != IMAGE else {}
    given |= {"--gpus": str(gpus)} if gpus else {}
    given |= {"--build": build} if build else {}
    given |= {"--user": rights.user} if rights.user else {}
    given |= {"--privileges": _listed(rights)} if rights.privileges else {}
    return _TEMPLATE.format(
        nodes=f"{nodes} node{'s' * (nodes != 1)}",
        options=shlex.join(word for pair in given.items() for word in pair if word is not None),
        image=image,
        build=_BUILD.format(context=json.dumps(build), dockerfile=DOCKERFILE) if build else "",
        command=json.dumps([COMMAND[0], "-m", "skyward.runner.entry.standby"]),
        work_dir=WORK_DIR,
        rights=_rights(rights),
        gpus=f'    skyward.gpus: "{gpus}"\n' if gpus else "",
        services=_services(nodes, gpus),
    )


def _rights(rights: Rights) -> str:
    """The lines for user and capabilities: none can be had or gained beyond those asked for."""
    lines = [f"user: {json.dumps(rights.user or f'${{{USER_VAR}:-{ACCOUNT_ID}:{ACCOUNT_ID}}}')}"]
    if rights.privileges != DEFAULT:
        lines.append("cap_drop: [ALL]")
        if rights.privileges:
            lines.append(f"cap_add: [{', '.join(rights.privileges)}]")
        else:
            lines.append('security_opt: ["no-new-privileges:true"]')
    return "".join(f"  {line}\n" for line in lines)


def _listed(rights: Rights) -> str:
    return rights.privileges if rights.privileges == DEFAULT else ",".join(rights.privileges)


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
