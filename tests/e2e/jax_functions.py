"""What the tests of JAX run on nodes; its module imports nothing that the image lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import skyward as sky

EPOCHS, STEPS, BATCH = 4, 42, 32  # a batch is that of all ranks together
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_COUNT")


@sky.compute
def place_in_the_group() -> dict[str, Any]:
    """What JAX and the environment say of this rank."""
    import jax

    return {
        "devices": len(jax.devices()),
        "here": len(jax.local_devices()),
        "process": jax.process_index(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def summed_over_the_mesh() -> float:
    """The sum of all ranks' numbers, counted from one, by a collective over all devices."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    info = sky.instance_info()
    assert info is not None
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    own = np.array([info.global_worker_index + 1.0], "float32")
    numbers = jax.make_array_from_process_local_data(NamedSharding(mesh, P("ranks")), own)
    psum = jax.shard_map(lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=P("ranks"), out_specs=P())
    return float(jax.jit(psum)(numbers).addressable_data(0)[0])


@sky.compute
def psum() -> float:
    return summed_over_the_mesh()


@sky.compute
@sky.integrations.jax
def psum_decorated(tree: Any) -> tuple[float, float]:
    """The same with the group made by the decorator; and the sum of arrays that came as an argument."""
    import jax

    return summed_over_the_mesh(), float(sum(leaf.sum() for leaf in jax.tree.leaves(tree)))


def digits() -> tuple[Any, Any]:
    """The handwritten digits that scikit-learn ships, mixed, so that every part is like the others."""
    import numpy as np
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order] / 16).astype("float32"), y[order]


def batches(x: Any, y: Any, rank: int, ranks: int) -> Iterator[tuple[Any, Any]]:
    """A rank's part of every batch."""
    part = BATCH // ranks
    for step in range(STEPS):
        rows = slice(step * BATCH + rank * part, step * BATCH + (rank + 1) * part)
        yield x[rows], y[rows]


def trained(devices: Any, rank: int, ranks: int) -> dict[str, Any]:
    """Softmax regression on these devices; each rank feeds its part of the batches."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(devices), ("batch",))

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        logits = x @ parameters["w"] + parameters["b"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))

    @jax.jit
    def step(parameters: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        return jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients), loss

    x, y = digits()
    parameters = {"w": np.zeros((64, 10), "float32"), "b": np.zeros(10, "float32")}
    parameters = jax.device_put(parameters, NamedSharding(mesh, P()))
    losses = []
    for _ in range(EPOCHS):
        for part in batches(x, y, rank, ranks):
            placed = [jax.make_array_from_process_local_data(NamedSharding(mesh, P("batch")), each) for each in part]
            parameters, loss = step(parameters, *placed)
            losses.append(float(loss))
    end = {name: np.asarray(value) for name, value in parameters.items()}
    right = (x[STEPS * BATCH :] @ end["w"] + end["b"]).argmax(axis=1) == y[STEPS * BATCH :]
    return {"losses": losses, "parameters": {k: v.tobytes() for k, v in end.items()}, "accuracy": float(right.mean())}


@sky.compute
def train_alone() -> dict[str, Any]:
    """On this rank's device, with whole batches."""
    import jax

    return trained(jax.local_devices(), 0, 1)


def doubled(tree: Any) -> Any:
    import jax

    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree)), tree
    return jax.tree.map(lambda leaf: leaf * 2, tree)


@sky.compute
def round_trip() -> dict[str, str]:
    """A client that has JAX, and no GPU, sends a pytree of arrays to a worker of its own and gets one back."""
    import jax
    import jax.numpy as jnp

    tree = {"layers": [jnp.arange(4.0), jnp.ones((300, 300))], "bias": jnp.array(0.5, "bfloat16")}
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        back = sky.compute(doubled)(tree) >> pool
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a * 2 == b).all()) and a.dtype == b.dtype, tree, back))
    return {"kind": type(back["bias"]).__name__, "devices": str(back["bias"].devices())}
