"""A small network and its profile, as `whorl advise burst` reads them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 8
LAYERS: list[tuple[str, dict[str, Any], Any]] = [
    ("conv2d", {"in_channels": 3, "out_channels": 16, "kernel_size": 3, "stride": 1, "padding": 1}, [3, 32, 32]),
    ("ReLU2d", {"inplace": False, "kernel_size": 1, "stride": 1, "padding": 0}, [16, 32, 32]),
    ("maxPool2d", {"kernel_size": 2, "stride": 2, "padding": 0}, [16, 32, 32]),
    ("conv2d", {"in_channels": 16, "out_channels": 32, "kernel_size": 3, "stride": 1, "padding": 1}, [16, 16, 16]),
    ("flatten", {"kernel_size": 1}, [32, 16, 16]),
    ("linear", {"in_features": 8192, "out_features": 100, "bias": True}, 8192),
]


def write_files(folder: Path, seed: int = 1) -> tuple[Path, Path]:
    """Write the profile (times of 1 to 8 samples on a GPU, drawn) and the network; returns both paths."""
    rng = np.random.default_rng(seed)
    profile, network = folder / "layer_times.csv", folder / "network.json"
    with profile.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "layer", "params", "input_dim", "batch", "forward_us", "backward_us"])
        for kind, params, dims in LAYERS:
            fixed, per_sample = rng.uniform(20, 200), rng.uniform(20, 300)
            sizes = ",".join(map(str, dims)) if isinstance(dims, list) else str(dims)
            for samples in (1, 2, 4, BATCH):
                took = fixed + per_sample * samples
                rows.writerow(
                    ["small", kind, json.dumps(params), sizes, samples, f"{took / 3:.3f}", f"{took / 1.5:.3f}"]
                )
    network.write_text(json.dumps({"layers": LAYERS, "name": "small"}))
    return profile, network
