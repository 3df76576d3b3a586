from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward.plugins
from skyward.builder.sources.declared import Declared, PluginUse
from skyward.errors import ConfigError, PluginError, UnknownNameError
from skyward.model.image import Image
from skyward.model.spec import Accelerator, Cluster
from skyward.plugins import Plugin, registry
from skyward.plugins.registry import declared_image

Install = Callable[..., None]

GOOD = """
from skyward.plugins.base import Plugin

def good(level=1):
    return Plugin.create(f"good {level}")

value = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution that offers plugins: `install("name", {"module": source}, {"plugin": "module:attr"})`."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, modules: dict[str, str], offers: dict[str, str]) -> None:
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(source)
            monkeypatch.delitem(sys.modules, module, raising=False)
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[{registry.PLUGINS.group}]", *(f"{plugin} = {value}" for plugin, value in offers.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()

    return put


def test_an_unknown_name_offers_close_ones(install: Install) -> None:
    """A typing error is answered with what was probably meant; hasattr keeps working."""
    install("sky-good", {"good_plugin": GOOD}, {"good": "good_plugin:good"})
    with pytest.raises(ConfigError, match=r"no plugin 'godo'\. Did you mean 'good'\? Known plugins: .*good"):
        skyward.plugins.godo()
    with pytest.raises(UnknownNameError, match=r"no plugin 'zzz'\. Known plugins"):
        skyward.plugins.zzz()
    assert not hasattr(skyward.plugins, "zzz")


def test_two_packages_cannot_share_a_name(install: Install) -> None:
    """Neither wins by chance; both are named."""
    install("sky-one", {"good_plugin": GOOD}, {"good": "good_plugin:good"})
    install("sky-two", {}, {"good": "good_plugin:good"})
    with pytest.raises(PluginError, match=r"'good' is taken more than once: by .*sky-one.* and by .*sky-two"):
        skyward.plugins.good()


def framework(version: str = "1", *, gpu: bool = True) -> Plugin:
    """A plugin with parameters that reads the plan."""

    def transform(image: Image, cluster: Cluster) -> Image:
        if not version[0].isdigit():
            raise ValueError(version)
        spec = cluster.spec
        kind = f"{spec.accelerator.name}-{spec.nodes}" if gpu and spec.accelerator else "cpu"
        return image.pip_install(f"framework=={version}").with_env(KIND=kind, WHERE=f"{spec.platform} {spec.python}")

    if version == "":
        raise ConfigError("version must not be empty.")
    return Plugin.create("framework").with_image_transform(transform)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PLUGINS", replace(registry.PLUGINS, built_in={"framework": f"{__name__}:framework"}))


def declared(*uses: PluginUse) -> Declared:
    """A declaration with these plugins."""
    accelerator = Accelerator("A100")
    return Declared(
        name="x", where="x.toml", root=Path("/"), image=Image(), plugins=uses, accelerator=accelerator, nodes=3
    )


def image(**kwargs: Any) -> Image:
    """The image with the plugin made of these parameters."""
    use = PluginUse(name="framework", kwargs=kwargs, where="x.toml, plugins.framework")
    return declared_image(declared(use), platform="linux/arm64", python="3.12")


def test_a_plugin_adds_to_the_image() -> None:
    """It is made with its parameters and sees the plan; what it adds is known as its own."""
    made = image(version="2")
    assert made == Image(pip=["framework==2"], env={"KIND": "A100-3", "WHERE": "linux/arm64 3.12"})
    assert dict(made.origins)["pip:framework==2"] == "plugin framework"
    assert image(gpu=False).env["KIND"] == "cpu"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"versoin": "2"}, r"x.toml, plugins.framework: .*no parameter .versoin.; did you mean version="),
        ({"zzz": 1}, r"It takes: version, gpu"),
        ({"version": ""}, r"x.toml, plugins.framework: version must not be empty"),
    ],
)
def test_wrong_parameters_are_named(kwargs: dict[str, Any], message: str) -> None:
    """The message names the place, the plugin and what it takes."""
    with pytest.raises(ConfigError, match=message):
        image(**kwargs)
