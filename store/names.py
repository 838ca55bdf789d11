"""The name of a GPU for people, the same everywhere."""

from __future__ import annotations


def gpu_name(gpu: str, node: str | None, slot: int | None) -> str:
    """`node/slot` if these are known, else the key `gpu`. The view `gpus_now` has the same rule."""
    return gpu if node is None or slot is None else f"{node}/{slot}"
