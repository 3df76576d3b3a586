"""Train a digit classifier with JAX on the devices of all nodes: one mesh, one model, each node its part of a batch."""

from __future__ import annotations

from typing import Any

import skyward as sky

Parameters = dict[str, Any]  # a pytree of arrays


@sky.compute
def train(parameters: Parameters, epochs: int, batch_size: int, lr: float) -> tuple[Parameters, list[float]]:
    """The trained parameters, which are the same on all nodes, and the mean loss of each epoch."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("batch",))  # the plugin has connected the nodes: the devices of all
    sharded, replicated = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())

    def loss_of(parameters: Parameters, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ parameters["w1"] + parameters["b1"])
        logits = hidden @ parameters["w2"] + parameters["b2"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))

    @jax.jit  # type: ignore[untyped-decorator]
    def step(parameters: Parameters, x: Any, y: Any) -> tuple[Parameters, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)  # of the whole batch, on all devices
        return jax.tree.map(lambda p, g: p - lr * g, parameters, gradients), loss

    def of_all_nodes(part: Any) -> Any:
        return jax.make_array_from_process_local_data(sharded, part)

    x, y = training_digits()
    parts = jax.process_count()
    parameters = jax.device_put(parameters, replicated)
    losses = []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(x))  # the same on all nodes
        batches = order[: len(order) // batch_size * batch_size].reshape(-1, batch_size)
        total = 0.0
        for rows in batches:
            mine = np.split(rows, parts)[jax.process_index()]
            parameters, loss = step(parameters, of_all_nodes(x[mine]), of_all_nodes(y[mine]))
            total += float(loss)
        losses.append(total / len(batches))
    print(f"{len(jax.devices())} devices, {len(jax.local_devices())} of them here: loss {losses[-1]:.4f}")
    return jax.tree.map(np.asarray, parameters), losses  # as NumPy arrays, so that the client needs no JAX


def training_digits() -> tuple[Any, Any]:
    x, y = digits()
    return x[:1437], y[:1437]


def digits() -> tuple[Any, Any]:
    """1,797 images of 8 x 8 pixels, shipped with scikit-learn."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y


def initial(seed: int, hidden: int = 64) -> Parameters:
    import numpy as np

    random = np.random.default_rng(seed)
    return {
        "w1": random.normal(0, 0.1, (64, hidden)).astype("float32"),
        "b1": np.zeros(hidden, "float32"),
        "w2": random.normal(0, 0.1, (hidden, 10)).astype("float32"),
        "b2": np.zeros(10, "float32"),
    }


def accuracy(parameters: Parameters) -> float:
    import numpy as np

    x, y = digits()
    hidden = np.maximum(x[1437:] @ parameters["w1"] + parameters["b1"], 0)
    return float(((hidden @ parameters["w2"] + parameters["b2"]).argmax(axis=1) == y[1437:]).mean())


def main() -> None:
    import numpy as np
    from provider import pool_options

    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(**pool_options(__doc__), image=image, plugins=[sky.plugins.jax()]) as pool:
        results = train(initial(seed=1), epochs=12, batch_size=32, lr=0.5) @ pool

    for node, (parameters, losses) in enumerate(results):
        print(f"node {node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, test accuracy {accuracy(parameters):.3f}")
    first = results[0][0]
    assert all(np.array_equal(first[name], other[name]) for other, _ in results for name in first), "the nodes differ"


if __name__ == "__main__":
    main()
