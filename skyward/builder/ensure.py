"""`ensure`: build the image of a plan unless the engine has it, once for all processes that ask at the same time.

That the engine has an image with the plan's tag is not enough: its content has to be what this user built, or found in
a registry, for that tag (`contents`). Otherwise it is built, mostly from the builder's cache, and takes the tag.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from skyward.builder.base import check_base, facts_of_base, replaced_python
from skyward.builder.cache import cache_folder, cache_path, gone_without, read, write
from skyward.builder.contents import is_known, note_content
from skyward.builder.events import Event, Report, note
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import BuildError
from skyward.image import BaseBuild, Plan, settled

if TYPE_CHECKING:
    from skyward.builder.registry.pushing import SharedCache
    from skyward.model.ssh import SshHost


def ensure(
    plan: Plan,
    store: EngineImages,
    report: Report,
    *,
    docker_host: str | SshHost | None = None,
    cache: SharedCache | None = None,
) -> ImageFacts:
    """Make the engine have the image of a plan, and return its facts. Another image that has the tag is replaced.

    Args:
        plan: from `plan_for`.
        store: the images of the engine.
        report: receives progress, see `skyward.builder.events`.
        docker_host: address of that engine, as DOCKER_HOST has it, or the machine that has it; None for what the docker
            command takes by itself.
        cache: where a build takes layers of other builders from, and leaves its own.

    Raises:
        BuildError: the build failed.
        ImageError: nothing can be built on the base that a Dockerfile made.
        ImageNotFoundError: the builder cannot get the base.
        EngineError: no docker command here can build.
        ConfigError: a secret has no value here, or this machine's settings for package sources are wrong.
    """
    facts = store.inspect(plan.tag)
    if facts is not None and is_known(plan.tag, facts):
        return facts
    started = perf_counter()
    with _single_flight(plan, report) as other:
        facts = store.inspect(plan.tag)
        if facts is None or not is_known(plan.tag, facts):
            write(_builder(plan), json.dumps({"pid": os.getpid(), "tag": plan.tag}))
            return _build(plan, store, report, docker_host, cache)
    if other:
        line = f"{plan.tag} was built by {other}; waited {perf_counter() - started:.1f} s for it"
        report(Event(kind="waited", line=line, by=other))
    return facts


def _build(
    plan: Plan, store: EngineImages, report: Report, docker_host: str | SshHost | None, cache: SharedCache | None
) -> ImageFacts:
    from skyward.builder.docker.build import (  # where nothing is to build, none of it is loaded
        build,
        build_base,
        secret_values,
    )

    secrets = secret_values(plan.image.secrets)  # whatever is missing is said before anything is made
    host = docker_host or os.environ.get("DOCKER_HOST")
    started, before = perf_counter(), store.inspect(plan.tag)
    ask = partial(store.inspect, plan.base)  # something that a frozen engine does not answer
    if plan.base_build and store.inspect(plan.base) is None:
        report(note(f"building the base {plan.base} from {plan.base_build.dockerfile}"))
        build_base(plan, report, host, secrets, ask)
    if plan.base_build:
        plan = _settled(plan, plan.base_build, store)
    if told := replaced_python(plan):
        report(note(told))
    report(note(f"building {plan.tag} from {plan.base}"))
    build(plan, report, host, secrets, cache, ask)
    made = store.inspect(plan.tag)
    if made is None:
        raise BuildError(
            f"The build of {plan.tag} ended well, but the engine does not have the image. The docker command "
            f"and skyward may use different engines: docker_host is {docker_host!r}; set DOCKER_HOST for both."
        )
    if before and (before.content or before.id) != (made.content or made.id):
        report(note(f"{plan.tag} was another image on the engine ({before.id[:19]}); the built one takes its place"))
    note_content(plan.tag, made.content, made.id)
    report(note(f"built {plan.tag} in {perf_counter() - started:.1f} s"))
    return made


def _settled(plan: Plan, made: BaseBuild, store: EngineImages) -> Plan:
    """The plan of an image whose base, made from a Dockerfile, is there now."""
    facts = store.inspect(plan.base)
    if facts is None:
        raise BuildError(f"The base {plan.base} was built, but the engine does not have it. Repeat it.")
    given = facts_of_base(plan.base, facts, store, plan.platform)
    check_base(f"from {made.dockerfile}", given, plan.python)
    return settled(plan, given)


@contextmanager
def _single_flight(plan: Plan, report: Report) -> Iterator[str]:
    """Let one process of this user build an image while others wait. Gives that process in words, "" for none."""
    from filelock import FileLock, Timeout

    other, folder = "", cache_folder()
    if folder is None:  # two processes may then build the same, of which the builder makes one
        yield other
        return
    # part of the identity only: lock files stay behind, and so cannot become more than 4096
    lock = FileLock(folder / f"build-{plan.identity[:3]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(note(f"{_other(plan)} builds {plan.tag}; waiting for it"))
        lock.acquire()
        other = _other(plan)  # which may be one that has waited, too
    except (OSError, NotImplementedError) as error:  # a full disk, or one that knows no locks
        gone_without(error)
        yield other
        return
    try:
        yield other
    finally:
        lock.release()


def _builder(plan: Plan) -> Path:
    """The file that says which process builds."""
    return cache_path(f"build-{plan.identity[:3]}.json")


def _other(plan: Plan) -> str:
    """The process that builds an image, or built it last, as far as it has said who it is."""
    try:
        found = json.loads(read(_builder(plan)) or "{}")
        return f"another process (pid {int(found['pid'])})" if found["tag"] == plan.tag else "another process"
    except (ValueError, KeyError, TypeError):
        return "another process"
