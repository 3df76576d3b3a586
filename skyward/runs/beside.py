"""The driver of a detached run as a container of this machine's engine, beside the containers of its pools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

from skyward.builder.events import Report
from skyward.builder.sources.script import pools_in_script
from skyward.delivery.deliver import Delivered, ImageTarget, deliver
from skyward.delivery.prepared import write_prepared
from skyward.engine import Engine, EngineAddress
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.nodes.run_directory import runtime_base, temporary_base
from skyward.records.run import RunRecord
from skyward.runs.container import container_name, driver_container, own_user, start_driver
from skyward.runs.driver import PROGRAM_FOLDER, write_launch
from skyward.runs.images import Deliver, deliver_driver, deliver_images
from skyward.runs.launch import Launch
from skyward.runs.pack import pack


def as_container(
    launch: Launch,
    source: Path,
    address: EngineAddress,
    variables: Mapping[str, str],
    report: Report,
    *,
    registry: str | None = None,
) -> RunRecord:
    """Build the images of a program's pools and of its driver, and start the driver.

    Args:
        launch: the program.
        source: its file.
        address: of the engine that runs the driver, as its pools name it.
        variables: environment variables that it gets.
        report: receives progress.
        registry: repository through which the images of its pools go; None where that engine runs them.

    Raises:
        ConfigError: its images, or what it needs, cannot be known before it runs.
        ImageError: an image cannot be had.
        EngineError: the engine refuses.
        ProviderError: the driver ended before the program ran.
    """
    images = pools_in_script(source)
    files = pack(launch, source, images)
    engine = Engine.connect(address.url)
    to_engine: Deliver = partial(_deliver, ImageTarget(engine=address), report)
    delivered = deliver_images(images, partial(_deliver, ImageTarget(engine=address, registry=registry), report))
    image = deliver_driver(images, to_engine)
    record = replace(launch.record(detached=True), place="docker", container=container_name(launch.id))
    folder = launch.folder
    try:
        record.write(folder)
        files.write(folder / PROGRAM_FOLDER)
        write_launch(folder, files.words, variables)
        write_prepared(folder, delivered)
        shared = {runtime_base(), temporary_base()}
        own = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR") if os.environ.get(name)}
        spec = driver_container(record, folder, image.tag, address.path, shared, own, own_user(address.path))
        start_driver(engine, spec, record)
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    return record


def _deliver(target: ImageTarget, report: Report, image: Image, cluster: Cluster) -> Delivered:
    return deliver(image, cluster, target, report)
