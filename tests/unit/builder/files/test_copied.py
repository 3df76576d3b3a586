"""Files of this machine that go into an image: packages, baked code; secrets, hashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from skyward.builder.docker.build import secret_values
from skyward.builder.plans import plan_for
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import ConfigError
from skyward.image import Plan
from skyward.model.image import Image
from tests.unit.builder.fakes import printed
from tests.unit.builder.wheels import make_wheel


class Engine(EngineImages):
    """An engine that has every image."""

    def __init__(self) -> None:
        pass

    def inspect(self, ref: str) -> ImageFacts | None:
        return ImageFacts(id=f"sha256:{ref}", config={})

    def pull(self, ref: str) -> None:
        raise AssertionError(ref)

    def run(self, ref: str, script: str, arguments: Sequence[str]) -> str:  # noqa: ARG002
        return printed()


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noted of images that do not exist is not noted on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def _plan(image: Image, root: Path) -> Plan:
    return plan_for(image, Engine(), python="3.11", platform="linux/amd64", root=root)


def test_local_packages_are_in_the_identity_by_content(tmp_path: Path) -> None:
    """A wheel and a project are installed from the context after the locked packages; their content counts, no path."""
    for place in ("one", "two"):
        make_wheel(tmp_path / place / "dist", "lib", "1.0")
        (tmp_path / place / "own/own").mkdir(parents=True)
        (tmp_path / place / "own/pyproject.toml").write_text(
            '[project]\nname = "own"\nversion = "1"\n[build-system]\nrequires = []\nbuild-backend = "own"\n'
        )
        (tmp_path / place / "own/own/__init__.py").write_text("x = 1\n")
    image = Image(pip=["./dist/lib-1.0-py3-none-any.whl", "./own"])
    one, two = _plan(image, tmp_path / "one"), _plan(image, tmp_path / "two")
    assert " lib/lib-1.0-py3-none-any.whl own\n" in one.dockerfile
    assert one.identity == two.identity
    assert str(tmp_path) not in one.dockerfile + str(one.inputs)
    (tmp_path / "two/own/own/__init__.py").write_text("x = 2\n")
    assert _plan(image, tmp_path / "two").identity != one.identity


def test_code_is_in_the_image_only_where_it_is_baked(tmp_path: Path) -> None:
    """Without the switch neither text nor identity knows of it; with it each byte and mode counts."""
    (tmp_path / "src").mkdir()
    module = tmp_path / "src/module.py"
    module.write_text("x = 1\n")
    plain, sent, baked = (
        _plan(image, tmp_path) for image in (Image(), Image(includes=["src"]), Image(includes=["src"], bake=True))
    )
    assert plain.identity == sent.identity
    assert plain.dockerfile == sent.dockerfile
    assert baked.identity != sent.identity
    module.chmod(0o755)
    assert _plan(Image(includes=["src"], bake=True), tmp_path).identity != baked.identity


def test_where_secrets_come_from(tmp_path: Path) -> None:
    """A file that is named for it before the variable of its name; what is missing is said with both ways."""
    (tmp_path / "token").write_bytes(b"from a file\n")
    environ = {"TOKEN": "from the environment", "my.key-2": "x", "SKYWARD_SECRET_OTHER_FILE": "/nowhere"}
    assert secret_values(["TOKEN", "my.key-2"], environ) == {"TOKEN": b"from the environment", "my.key-2": b"x"}
    environ["SKYWARD_SECRET_MY_KEY_2_FILE"] = str(tmp_path / "token")
    assert secret_values(["my.key-2"], environ) == {"my.key-2": b"from a file\n"}
    with pytest.raises(ConfigError, match=r"SKYWARD_SECRET_OTHER_FILE names '/nowhere' for the secret 'OTHER'"):
        secret_values(["OTHER"], environ)
    with pytest.raises(ConfigError, match="Set the environment variable MISSING, or SKYWARD_SECRET_MISSING_FILE"):
        secret_values(["MISSING"], environ)
