"""Train a digit classifier with TensorFlow's MultiWorkerMirroredStrategy: one model, each node its part of a batch."""

from __future__ import annotations

from typing import Any

import skyward as sky


@sky.compute
@sky.integrations.tensorflow
def train(epochs: int, batch_size: int, lr: float) -> dict[str, float]:
    import tensorflow as tf
    from sklearn.datasets import load_digits

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # must come first: it reads TF_CONFIG and connects the nodes

    pixels, digits = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x, y = (pixels / 16).astype("float32"), digits.astype("int32")
    train_set = tf.data.Dataset.from_tensor_slices((x[:1437], y[:1437])).cache().shuffle(1437, seed=1)
    batches = train_set.batch(batch_size, drop_remainder=True).prefetch(1)  # one batch for all nodes together
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    parts = strategy.experimental_distribute_dataset(batches.with_options(options))  # each node gets its part

    with strategy.scope():
        variables = [
            tf.Variable(tf.random.stateless_normal([64, 64], [1, 1], stddev=0.1)),
            tf.Variable(tf.zeros([64])),
            tf.Variable(tf.random.stateless_normal([64, 10], [2, 2], stddev=0.1)),
            tf.Variable(tf.zeros([10])),
        ]

    def logits_of(x: Any) -> Any:
        w1, b1, w2, b2 = variables
        return tf.nn.relu(x @ w1 + b1) @ w2 + b2

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits_of(x))
            loss = tf.reduce_sum(each) / batch_size
        gradients = tape.gradient(loss, variables)
        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for variable, gradient in zip(variables, summed, strict=True):
            variable.assign_sub(lr * gradient)
        return loss

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def train_step(x: Any, y: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(x, y)), axis=None)

    losses: list[float] = []
    for _ in range(epochs):
        each_batch = [float(train_step(*part)) for part in parts]
        losses.append(sum(each_batch) / len(each_batch))

    right = tf.argmax(logits_of(x[1437:]), axis=1, output_type=tf.int32) == y[1437:]
    checksum = sum(float(tf.reduce_sum(tf.cast(variable, tf.float64))) for variable in variables)
    print(f"one of {strategy.num_replicas_in_sync} replicas: loss {losses[-1]:.4f}")
    return {
        "replicas": strategy.num_replicas_in_sync,
        "first loss": losses[0],
        "loss": losses[-1],
        "test accuracy": float(tf.reduce_mean(tf.cast(right, tf.float32))),
        "checksum": checksum,
    }


def main() -> None:
    from provider import pool_options

    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(**pool_options(__doc__), image=image, plugins=[sky.plugins.tensorflow()]) as pool:
        results = train(epochs=8, batch_size=64, lr=0.5) @ pool

    for node, result in enumerate(results):
        print(f"node {node}: " + ", ".join(f"{name} {value:.6g}" for name, value in result.items()))
    assert len({result["checksum"] for result in results}) == 1, "the nodes' models differ"


if __name__ == "__main__":
    main()
