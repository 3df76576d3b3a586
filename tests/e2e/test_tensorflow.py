"""TensorFlow in containers: two nodes train one model. One pool and one test, since its start takes longest of all."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import PluginError
from tests.e2e import tensorflow_functions as functions


@pytest.mark.timeout(900)  # the first run on a machine builds the image
def test_two_nodes_train_one_model() -> None:
    """MultiWorkerMirroredStrategy: equal bits on both ranks, losses as on one; a rank alone is not made to wait."""
    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(sky.Docker(), nodes=2, image=image, plugins=[sky.plugins.tensorflow()]) as pool:
        first, second = functions.train_together() @ pool
        alone = functions.train_alone().with_timeout(200) >> pool
        with pytest.raises(PluginError, match=r"tensorflow: this call runs on rank \d only, of 2"):
            functions.train_together() >> pool
        again, _ = functions.train_together() @ pool

    assert first["replicas"] == second["replicas"] == 2
    assert first["config"]["cluster"] == second["config"]["cluster"]
    assert [r["config"]["task"] for r in (first, second)] == [{"type": "worker", "index": rank} for rank in (0, 1)]
    assert len(set(first["config"]["cluster"]["worker"])) == 2
    assert first["weights"] == second["weights"]
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-5, rel=0)
    assert again["losses"] == first["losses"]
    assert (alone["replicas"], alone["config"]) == (1, None)
    assert first["losses"][-1] < first["losses"][0] / 4
    assert first["accuracy"] > 0.9
