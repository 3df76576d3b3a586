"""What the test of TensorFlow runs on nodes; its module imports nothing that the image lacks."""

from __future__ import annotations

import json
import os
from typing import Any

import skyward as sky

EPOCHS, BATCH, TRAINED_ON, RATE = 4, 64, 1408, 0.5  # a batch is that of all ranks together


def digits() -> tuple[Any, Any]:
    """The handwritten digits that scikit-learn ships, mixed, so that every part is like the others."""
    import numpy as np
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order] / 16).astype("float32"), y[order].astype("int32")


def trained(strategy: Any) -> dict[str, Any]:
    """Softmax regression under a strategy, in a loop of one's own."""
    import numpy as np
    import tensorflow as tf

    x, y = digits()
    batches = tf.data.Dataset.from_tensor_slices((x[:TRAINED_ON], y[:TRAINED_ON])).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    parts = strategy.experimental_distribute_dataset(batches.with_options(options))
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([64, 10])), tf.Variable(tf.zeros([10]))]

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = x @ variables[0] + variables[1]
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)) / BATCH
        summed = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, variables))
        for variable, gradient in zip(variables, summed, strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    @tf.function(autograph=False)
    def train_step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    losses = [float(train_step(*part)) for _ in range(EPOCHS) for part in parts]
    weights, bias = (variable.numpy() for variable in variables)
    right = (x[TRAINED_ON:] @ weights + bias).argmax(axis=1) == y[TRAINED_ON:]
    return {
        "replicas": strategy.num_replicas_in_sync,
        "losses": losses,
        "weights": weights.tobytes(),
        "accuracy": float(np.mean(right)),
    }


@sky.compute
@sky.integrations.tensorflow()
def train_together() -> dict[str, Any]:
    """On all ranks: one model, the strategy of several workers."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    return {**trained(tf.distribute.MultiWorkerMirroredStrategy()), "config": config}


@sky.compute
def train_alone() -> dict[str, Any]:
    """On one rank, without a strategy: it finds no cluster, and waits for nobody."""
    import tensorflow as tf

    return {**trained(tf.distribute.get_strategy()), "config": os.environ.get("TF_CONFIG")}
