"""The text of a compose file for nodes, as `sky.Compose` takes it. Docker Compose 2 and docker-compose 1.29 read it."""

from __future__ import annotations

import json

from skyward.providers.containers import COMMAND, WORK_DIR

IMAGE = "skyward:node"  # what nodes run that no pool brings up, unless SKYWARD_IMAGE says otherwise
_TEMPLATE = """\
# {nodes} and a registry, written by `skyward up {options}`. Change the command, not this file.
# A pool with provider=sky.Compose("compose.yaml") brings it up and down, or uses it while it is up.
# No secret is in it: a pool hands its key to its nodes through the Docker engine.
services:
  registry:
    image: ${{SKYWARD_REGISTRY_IMAGE:-registry:2}}
    ports:
      - "127.0.0.1:${{SKYWARD_REGISTRY_PORT:-5000}}:5000"
    volumes:
      - registry:/var/lib/registry

  node:
    image: ${{SKYWARD_IMAGE:-{image}}}
    command: {command}
    environment:
      SKYWARD_STANDBY_LEASE: ${{SKYWARD_STANDBY_LEASE:-}}
    labels:
      skyward.pool: ${{SKYWARD_POOL:-standby}}
    working_dir: {work_dir}
    init: true
    shm_size: 1gb
    deploy:
      replicas: {count}

volumes:
  registry: {{}}
"""


def compose_file(nodes: int, image: str = IMAGE) -> str:
    """A file with so many nodes and a registry; `image` is what nodes run that no pool brings up."""
    options = f"--nodes {nodes} --compose" + ("" if image == IMAGE else f" --image {image}")
    return _TEMPLATE.format(
        nodes=f"{nodes} node{'s' * (nodes != 1)}",
        options=options,
        image=image,
        command=json.dumps([COMMAND[0], "-m", "skyward.runner.standby"]),
        work_dir=WORK_DIR,
        count=nodes,
    )
