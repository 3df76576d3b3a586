"""Train on handwritten digits in the containers of compose.yaml, which average their models over their own network.

docker compose up --detach       # optional: otherwise this program brings the file up, and down when it ends
python examples/compose.py

The data is sent from here. The models go over the containers' bridge network, to the address of the first one.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import skyward as sky

if TYPE_CHECKING:
    import numpy as np

COMPOSE_FILE = Path(__file__).parents[1] / "compose.yaml"
IMAGE = sky.Image(pip=["scikit-learn"])
PATIENCE_S = 30.0


def average(values: np.ndarray, info: sky.InstanceInfo) -> np.ndarray:
    """The mean of every node's values, which the head node forms."""
    import numpy as np

    place, size = (info.head_addr, info.head_port), values.nbytes
    if info.is_head:
        others = []
        with socket.create_server(place) as server:
            server.settimeout(PATIENCE_S)
            others = [server.accept()[0] for _ in range(info.total_nodes - 1)]
        received = [other.makefile("rb").read(size) for other in others]
        mean: np.ndarray = np.mean([values, *(np.frombuffer(each).reshape(values.shape) for each in received)], axis=0)
        for other in others:
            other.sendall(mean.tobytes())
            other.close()
        return mean
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            head = socket.create_connection(place)
            break
        except ConnectionRefusedError:  # the head is not listening yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    with head:
        head.sendall(values.tobytes())
        return np.frombuffer(head.makefile("rb").read(size)).reshape(values.shape)


@sky.compute
def train(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    info = sky.instance_info()
    assert info
    x, y = sky.shard(x, y, shuffle=True, seed=42)
    model = LogisticRegression(max_iter=500).fit(x, y)
    own = np.column_stack([model.coef_, model.intercept_])
    print(f"{socket.gethostbyname(socket.gethostname())} trained on {len(x)} of the digits")
    return {"samples": len(x), "own": own, "mean": average(own, info)}


def main() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)

    with sky.ComputePool(sky.Compose(COMPOSE_FILE), nodes=3, image=IMAGE) as pool:
        results = train(x_train, y_train) @ pool

    def accuracy(model: np.ndarray) -> float:
        return float(((x_test @ model[:, :-1].T + model[:, -1]).argmax(axis=1) == y_test).mean())

    print(f"\n{'model':<12}{'samples':>8}{'accuracy':>10}")
    for node, result in enumerate(results):
        name = f"node {node}"
        print(f"{name:<12}{result['samples']:>8}{accuracy(result['own']):>10.3f}")
    print(f"{'combined':<12}{len(x_train):>8}{accuracy(results[0]['mean']):>10.3f}")


if __name__ == "__main__":
    main()
