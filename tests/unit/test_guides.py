"""The guides in `examples/guides`: the lines that documents embed are those they speak of."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "examples" / "guides"

# guide and lines (first and last, from 1) -> what the document says of them, as pieces of code in their order
EMBEDDED = {
    ("06_pytorch_distributed", 6, 8): ["@sky.compute\n", "@sky.integrations.torch\n", "def train("],
    ("06_pytorch_distributed", 21, 28): ["model = nn.Sequential(", "if dist.is_initialized():", "model = DDP(model)"],
    ("06_pytorch_distributed", 30, 34): ["dataset = TensorDataset(", "DistributedSampler(", "loader = DataLoader("],
    ("06_pytorch_distributed", 61, 64): ["metrics = torch.tensor(", "dist.all_reduce(metrics, op=dist.ReduceOp.SUM)"],
    ("14_kubernetes", 20, 27): ["@sky.compute(retries=3)\n", "def score(", "return float(cross_val_score("],
    ("14_kubernetes", 37, 42): ["with sky.ComputePool(", "calls = [", "sky.gather(*calls, stream=True)"],
    ("07_keras_training", 11, 13): ["@sky.compute\n", "@sky.integrations.keras(", "def train("],
    ("07_keras_training", 18, 22): ["= keras.datasets.mnist.load_data(", "= load_digits(", "= sky.shard("],
    ("07_keras_training", 24, 30): ["model = keras.Sequential("],
    ("07_keras_training", 32, 39): ["model.compile(", "model.fit(", "model.evaluate("],
}


@pytest.mark.parametrize(("place", "pieces"), EMBEDDED.items(), ids=lambda value: "-".join(map(str, value))[:40])
def test_documents_embed_whole_pieces(place: tuple[str, int, int], pieces: list[str]) -> None:
    """The lines hold what the text around them explains, and no half of a statement."""
    name, first, last = place
    lines = (GUIDES / f"{name}.py").read_text(encoding="utf-8").splitlines()[first - 1 : last]
    text = textwrap.dedent("\n".join(lines))

    places = [text.find(piece) for piece in pieces]
    assert -1 not in places
    assert places == sorted(places)
    assert lines[0].strip()
    assert lines[-1].strip()
    ast.parse(text + "\n    ..." if text.rstrip().endswith(":") else text)
