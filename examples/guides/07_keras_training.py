"""Train digit classifiers with Keras on JAX: each node trains its own model on its part of the data."""

from typing import Any

import skyward as sky

# `keras` sets the backend before anything imports Keras, and seeds it. Below
# `compute`, as here, it decorates the function that runs on the nodes.


@sky.compute
@sky.integrations.keras(backend="jax", seed=42)
def train(data: str, epochs: int, batch_size: int) -> dict[str, float]:
    import keras

    # Keras downloads MNIST if nodes can reach the internet. The digits that
    # ship with scikit-learn are smaller, and need no network.
    if data == "mnist":
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    else:
        (x_train, y_train), (x_test, y_test) = load_digits()
    x_train, y_train = sky.shard(x_train / 255, y_train, shuffle=True, seed=42)

    model = keras.Sequential(
        [
            keras.layers.Flatten(),
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
    _, accuracy = model.evaluate(x_test / 255, y_test, verbose=0)

    print(f"trained on {len(x_train)} digits with {keras.config.backend()}")
    return {"samples": len(x_train), "loss": float(loss), "test accuracy": float(accuracy)}


def load_digits() -> Any:
    """Grey images with values up to 255, as those of MNIST are: for training, and for the test."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()  # 1,797 images of 8 x 8 pixels
    x, y = digits.images * (255 / 16), digits.target
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
    return (x_train, y_train), (x_test, y_test)


def main() -> None:
    from provider import pool_options

    options = pool_options(__doc__, data=("digits", "mnist"))
    data = options.pop("data")
    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(**options, image=image, plugins=[sky.plugins.keras(backend="jax")]) as pool:
        results = train(data, epochs=15, batch_size=32) @ pool

    for node, result in enumerate(results):
        print(f"node {node}: " + ", ".join(f"{name} {value:.4g}" for name, value in result.items()))


if __name__ == "__main__":
    main()
