"""Plugins that are declared by name: made with their parameters, applied to the image."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.sources.declared import Declared, PluginUse
from skyward.errors import ConfigError, UnknownNameError
from skyward.model.image import Image
from skyward.model.spec import Accelerator, Cluster
from skyward.plugins import Plugin, registry
from skyward.plugins.registry import declared_image


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


def test_positional_parameters() -> None:
    """A script may give parameters by position."""
    made = declared_image(declared(PluginUse(name="framework", args=("7",))), platform="linux/amd64", python="3.11")
    assert made.pip == ("framework==7",)


def test_without_plugins_the_image_is_as_declared() -> None:
    """Nothing is added."""
    assert declared_image(declared(), platform="linux/amd64", python="3.11") == Image()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"versoin": "2"}, r"x.toml, plugins.framework: the plugin 'framework' does not take .*Did you mean version\?"),
        ({"zzz": 1}, r"It takes: version, gpu"),
        ({"version": ""}, r"x.toml, plugins.framework: version must not be empty"),
    ],
)
def test_wrong_parameters_are_named(kwargs: dict[str, Any], message: str) -> None:
    """The message names the place, the plugin and what it takes."""
    with pytest.raises(ConfigError, match=message):
        image(**kwargs)


def test_an_unknown_plugin_is_named() -> None:
    """The message names the place and names that come close."""
    use = PluginUse(name="framewrk", where="x.toml, plugins.framewrk")
    with pytest.raises(UnknownNameError, match=r"x.toml, plugins.framewrk: .*Did you mean 'framework'"):
        declared_image(declared(use), platform="linux/amd64", python="3.11")
