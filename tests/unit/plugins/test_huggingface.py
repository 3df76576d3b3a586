"""The huggingface plugin: what it adds to the image, and where its token may show."""

from __future__ import annotations

import re

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import node_setup, transform_all
from skyward.wire import payload

TOKEN = "hf_CanaryThatMustNotShow"
CLUSTER = Cluster(spec=ClusterSpec())


def test_it_adds_the_three_libraries_and_quiets_them() -> None:
    """What the user has set stays as it is."""
    before = Image(pip=["transformers==5.23.0"], env={"TOKENIZERS_PARALLELISM": "true"})

    assert transform_all(before, [sky.plugins.huggingface()], CLUSTER) == Image(
        pip=["datasets", "tokenizers", "transformers==5.23.0"],
        env={"TOKENIZERS_PARALLELISM": "true", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )


def test_the_token_is_a_secret() -> None:
    """It is in no text made of the plugin or its pool, and not in the image; it is what workers are sent apart."""
    plugin = sky.plugins.huggingface(token=TOKEN)
    pool = sky.ComputePool(sky.Local(), plugins=[plugin])
    made = transform_all(Image(), [plugin], CLUSTER)

    for value in (plugin, pool, vars(pool), made, made.origins, payload.dumps(node_setup([plugin], CLUSTER))):
        assert TOKEN not in repr(value)
        assert not re.search(TOKEN, str(value))
    assert made == transform_all(Image(), [sky.plugins.huggingface()], CLUSTER)
    assert dict(plugin.secrets.entries) == {"HF_TOKEN": TOKEN}


@pytest.mark.parametrize(("token", "found"), [("", "an empty text"), ("  ", "an empty text"), (7, "a int")])
def test_a_token_is_a_text(token: str, found: str) -> None:
    """What is no token is refused, and not shown either."""
    with pytest.raises(ConfigError, match=f"found {found}"):
        sky.plugins.huggingface(token=token)
