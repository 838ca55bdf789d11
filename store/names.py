"""The one name that a GPU has for people."""

from __future__ import annotations


def gpu_name(gpu: str, node: str | None, slot: int | None) -> str:
    """`node/slot` where these are known, else the key `gpu`; the view `gpus_now` follows the same rule."""
    return gpu if node is None or slot is None else f"{node}/{slot}"
