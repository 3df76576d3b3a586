"""Train a digit classifier with Keras on JAX: every node on its part of the data, a model of its own on each."""

from __future__ import annotations

import skyward as sky

# `keras` sets the backend before anything imports Keras, and seeds it. Below
# `compute`, as here, it decorates what runs on the nodes.


@sky.compute
@sky.integrations.keras(backend="jax", seed=42)
def train(epochs: int, batch_size: int) -> dict[str, float]:
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, digits = load_digits(return_X_y=True)
    x = (pixels / 16).astype("float32")  # 1,797 images of 8 x 8 pixels
    x_train, x_test, y_train, y_test = train_test_split(x, digits, test_size=0.2, random_state=0)

    x_train, y_train = sky.shard(x_train, y_train, shuffle=True, seed=42)

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )

    model.compile(
        optimizer=keras.optimizers.Adam(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, verbose=0)
    loss = history.history["loss"][-1]
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)

    print(f"trained on {len(x_train)} digits with {keras.config.backend()}")
    return {"samples": len(x_train), "loss": float(loss), "test accuracy": float(accuracy)}


def main() -> None:
    from provider import pool_options

    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(**pool_options(__doc__), image=image, plugins=[sky.plugins.keras(backend="jax")]) as pool:
        results = train(epochs=15, batch_size=32) @ pool

    for node, result in enumerate(results):
        print(f"node {node}: " + ", ".join(f"{name} {value:.4g}" for name, value in result.items()))


if __name__ == "__main__":
    main()
