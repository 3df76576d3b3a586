"""A compiled image against the Dockerfile that somebody careful wrote for the same packages; `benchmarks/images.py`."""

from __future__ import annotations

from benchmarks import images


def test_sklearn_is_as_small_and_cheaper_to_extend() -> None:
    """Within 1 % of its size, nothing left of caches, and one more package sends a tenth at most."""
    with images.opened() as bench:
        found = images.measure("sklearn", bench)
    ours, by_hand = found["skyward"], found["by hand"]
    assert ours["bytes"] <= by_hand["bytes"] * 1.01
    assert ours["pushed_bytes"] <= by_hand["pushed_bytes"] * 1.01
    assert ours["bytes_in_caches"] == 0
    more = ours["one_package_more"]
    assert 0 < more["sent_share"] < 0.1
    assert more["sent_bytes"] < by_hand["one_package_more"]["sent_bytes"]
