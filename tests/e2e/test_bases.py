"""Images on bases that others made: their packages, paths, users and entry points; what is said where nothing goes."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.builder.plans import ensure, plan_for
from skyward.errors import BuildError
from tests.e2e.base_functions import found, variables
from tests.e2e.building import PYTHON
from tests.e2e.commands import SKYWARD
from tests.e2e.rights_functions import rights, writable

SITE = f"/app/.venv/lib/python{PYTHON}/site-packages"
# An application's image: its Python in an environment of its own, a user by number, a script before every command.
APPLICATION = f"""\
RUN rm -rf /opt/venv && mkdir -p /app/linked /paths /root/deep/app \\
 && python{PYTHON} -m venv --without-pip /app/.venv \\
 && echo 'own = True' >{SITE}/of_the_base.py && echo 'own = True' >{SITE}/six.py \\
 && echo '' >/app/linked/editable.py && echo /app/linked >{SITE}/editable.pth && echo '' >/paths/by_path.py \\
 && printf '#!/bin/sh\\nexport BY_ENTRYPOINT=yes\\nexec "$@"\\n' >/entry.sh && chmod 755 /entry.sh
ENV PATH=/app/.venv/bin:/usr/local/bin:/usr/bin:/bin VIRTUAL_ENV=/app/.venv PYTHONPATH=/paths UV_SYSTEM_PYTHON=1
WORKDIR /root/deep/app
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
HEALTHCHECK --interval=1s CMD false
ENTRYPOINT ["/entry.sh"]
CMD ["serve"]
USER 4711
"""
# One whose entry point is a program that ends, with volumes where nodes work.
ENDS = """\
ENTRYPOINT ["/bin/sh", "-c", "exit 3"]
VOLUME /work /tmp
STOPSIGNAL SIGQUIT
ONBUILD RUN true
"""
# Two environments that only root may read, and settings of pip with which nothing is installed elsewhere.
OWN = f"/opt/venv/lib/python{PYTHON}/site-packages"
CARELESS = f"""\
RUN rm -rf /opt/venv && umask 077 \\
 && python{PYTHON} -m venv --without-pip /opt/venv && python{PYTHON} -m venv --without-pip /app/.venv \\
 && echo '' >{OWN}/of_the_first.py && echo '' >{SITE}/of_the_second.py \\
 && printf '[global]\\nuser = true\\n' >/etc/pip.conf
ENV PATH=/app/.venv/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin VIRTUAL_ENV= PIP_REQUIRE_VIRTUALENV=1 PIP_PREFIX=/x
"""
# A Python that only root may run, with an environment of it.
CLOSED = f"""\
RUN rm -rf /opt/venv && umask 077 && mkdir -p /opt/own/bin /opt/own/lib && cp -r /usr/lib/python{PYTHON} /opt/own/lib/ \
 && cp /usr/bin/python{PYTHON} /opt/own/bin/python3 && /opt/own/bin/python3 -m venv --without-pip /opt/venv \
 && chmod -R go= /opt/own
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin VIRTUAL_ENV=
"""
# One with what root has installed for itself.
ROOTS = f"""\
RUN rm -rf /opt/venv && umask 077 && mkdir -p /root/.local/lib/python{PYTHON}/site-packages \\
 && echo '' >/root/.local/lib/python{PYTHON}/site-packages/of_root.py
ENV PATH=/usr/local/bin:/usr/bin:/bin VIRTUAL_ENV=
"""
Make = Callable[[str, str], str]


@pytest.fixture(scope="module")
def base(engine: Any) -> Iterator[Make]:
    """Makes bases from the instructions after FROM."""
    made = []

    def make(name: str, text: str) -> str:
        file = io.BytesIO(f"FROM {os.environ['SKYWARD_BASE']}\n{text}".encode())
        made.append(f"skyward-test/{name}:latest")
        engine.images.build(fileobj=file, tag=made[-1], network_mode="host", rm=True)
        return made[-1]

    yield make
    for tag in reversed(made):
        engine.images.remove(tag, force=True)


def test_an_application_s_base(base: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages and paths are there below ours; user, place and script are its own; the client's umask is not."""
    (tmp_path / "baked").mkdir()
    (tmp_path / "baked/code_of_ours.py").touch(mode=0o600)
    monkeypatch.chdir(tmp_path / "baked")
    image = sky.Image(base=base("application", APPLICATION), pip=["six"], includes=["code_of_ours.py"], bake=True)
    before = os.umask(0o077)
    try:
        with sky.ComputePool(sky.Docker(), image=image) as pool:
            about = rights() >> pool
            places = found("of_the_base", "six", "editable", "by_path", "code_of_ours", "skyward") >> pool
            assert writable() >> pool == []
            (path,) = variables("PYTHONPATH") >> pool
    finally:
        os.umask(before)
    assert (about["uid"], about["name"], about["cwd"], about["home"], about["by_entrypoint"]) == (
        4711,
        "skyward",
        "/root/deep/app",
        "/home/skyward",
        "yes",
    )
    assert places == {
        "of_the_base": f"{SITE}/of_the_base.py",
        "six": f"/opt/venv/lib/python{PYTHON}/site-packages/six.py",
        "editable": "/app/linked/editable.py",
        "by_path": "/paths/by_path.py",
        "code_of_ours": "/root/deep/app/.skyward-code/code_of_ours.py",  # a link to the image's
        "skyward": "/opt/skyward/skyward/__init__.py",
    }
    assert path == "/opt/skyward:/opt/code:/paths"


def test_an_entry_point_that_ends_is_left_out(base: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are health checks and other signals; what only the image below a Dockerfile names counts as well: its user."""
    below = base("ends", ENDS + "USER 4712\n")
    (tmp_path / "Dockerfile").write_text(f"FROM {below}\nENV HERE=yes\n")
    monkeypatch.chdir(tmp_path)
    for image in (sky.Image(base=below), sky.Image.from_dockerfile("Dockerfile")):
        with sky.ComputePool(sky.Docker(), image=image) as pool:
            assert (rights() >> pool)["uid"] == 4712
            assert writable() >> pool == []


def test_bases_that_are_made_carelessly(base: Make) -> None:
    """Packages of each environment on its PATH, and root's, are there for the nodes' user; ours are installed.

    So it is where only root may run the Python itself.
    """
    for image, modules in (
        (sky.Image(base=base("careless", CARELESS), pip=["six"]), ("of_the_first", "of_the_second", "six")),
        (sky.Image(base=base("roots", ROOTS)), ("of_root",)),
        (sky.Image(base=base("closed", CLOSED), pip=["six"]), ("six",)),
    ):
        with sky.ComputePool(sky.Docker(), image=image) as pool:
            assert (found(*modules) >> pool).keys() == {*modules}
            assert (rights() >> pool)["uid"] != 0


def test_a_python_that_prints(base: Make) -> None:
    """Nodes start on it; where packages are to be installed, a sentence says why that cannot be."""
    noisy = base("noisy", f"RUN echo 'import sys; print(1234)' >{OWN}/noisy.pth\n")
    with sky.ComputePool(sky.Docker(), image=sky.Image(base=noisy)) as pool:
        assert (rights() >> pool)["uid"] != 0
    store = sky.Docker().images
    plan = plan_for(sky.Image(base=noisy, pip=["six"]), store, python=PYTHON, platform="linux/amd64")
    with pytest.raises(BuildError, match="prints as it starts, with which uv cannot work: '1234"):
        ensure(plan, store, lambda _: None)


def test_a_base_without_accounts(base: Make) -> None:
    """Its user is a number that nobody has named."""
    image = sky.Image(base=base("nobody", "RUN rm /etc/passwd /etc/group\nUSER 4713\n"), pip=["six"])
    with sky.ComputePool(sky.Docker(), image=image) as pool:
        assert (rights() >> pool)["uid"] == 4713


def test_a_python_that_nobody_can_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base has another version, uv may download none and apt has none: a sentence says what there is."""
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    store = sky.Docker().images
    other = "3.15" if PYTHON != "3.15" else "3.14"
    plan = plan_for(sky.Image(python=other), store, python=other, platform="linux/amd64")
    said = []
    with pytest.raises(BuildError, match=rf"the base has Python {PYTHON}, wanted is Python {other}.*INSTALL_MIRROR"):
        ensure(plan, store, lambda event: said.append(str(event)))
    assert f"the base has Python {PYTHON} (/opt/venv/bin/python), and nodes get Python {other}" in "".join(said)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"bin/sh": ""}, "its programs cannot be run on the engine's machine"),
        ({"usr/bin/python3.11": ""}, "It has no shell"),
    ],
)
def test_what_cannot_be_a_base(engine: Any, files: dict[str, str], said: str, tmp_path: Path) -> None:
    """Nothing can be started in these images, and `skyward build` says so first of all."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    tag = "skyward-test/odd:latest"
    engine.api.import_image_from_data(packed.getvalue(), repository="skyward-test/odd", tag="latest")
    try:
        (tmp_path / "image.toml").write_text(f'base = "{tag}"\npip = ["six"]\n')
        words = [*SKYWARD, "build", str(tmp_path / "image.toml")]
        built = subprocess.run(words, capture_output=True, text=True, check=False)
    finally:
        engine.images.remove(tag, force=True)
    assert built.returncode == 4
    assert built.stderr.startswith(f"skyward: The base image '{tag}' cannot be built on")
    assert said in built.stderr
