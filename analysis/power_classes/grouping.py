"""Power classes: workloads with similar spike vectors, by average linkage on cosine distance.

Average linkage needs no coordinates, so it is valid on any distance. (Minos has Ward's linkage, which is defined for
Euclidean distances only.) The number of classes is the one with the largest mean silhouette (P. J. Rousseeuw, Journal
of Computational and Applied Mathematics 20, 1987). If even that is small, all are one class. A silhouette has no scale,
so workloads that are nearly the same are never parted, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ..statistics.ordering import Floats, Ints
from .profiles import Profile
from .spikes import BINS, HIGH, LOW, distances

LIGHT = 0
"""The class of workloads whose power never reaches half of the limit: they have no spike vector."""
MOST_CLASSES = 6
CLEAR = 0.5
"""Below this mean silhouette nothing shows that there is more than one class."""
APART = 0.1
"""The least mean cosine distance between two classes."""
COLUMNS = {
    "cluster": pl.String,
    "workload": pl.String,
    "power_class": pl.Int64,
    "silhouette": pl.Float64,
    "use": pl.String,
    "mean_ratio": pl.Float64,
    "p99_ratio": pl.Float64,
    "above_limit": pl.Float64,
    "runs": pl.Int64,
    "gpus": pl.Int64,
    "readings": pl.Int64,
    "reason": pl.String,
}


def power_classes(profiles: Sequence[Profile]) -> pl.DataFrame:
    """The class of each workload, columns as `COLUMNS`.

    `power_class`: `LIGHT`, or from 1 on by rising power; null with a `reason`. `silhouette`: how much nearer a workload
    is to its own class than to the next, -1 to 1; null where there is one class, or the workload is alone in its class.
    """
    known = [i for i, one in enumerate(profiles) if one.vector is not None]
    vectors = np.array([profiles[i].vector for i in known]).reshape(len(known), BINS)
    labels, silhouettes = _grouped(vectors)
    centres = LOW + (HIGH - LOW) * (np.arange(BINS) + 0.5) / BINS
    level = {label: float(vectors[labels == label].mean(axis=0) @ centres) for label in set(labels.tolist())}
    number = {label: i for i, label in enumerate(sorted(level, key=lambda label: level[label]), start=1)}
    of_class = {i: (number[int(label)], value) for i, label, value in zip(known, labels, silhouettes, strict=True)}
    rows = []
    for i, one in enumerate(profiles):
        found, value = of_class.get(i, (None if one.reason else LIGHT, None))
        rows.append(one.as_row() | {"power_class": found, "silhouette": None if value is None else round(value, 4)})
    return pl.DataFrame(rows, schema=COLUMNS)


def _grouped(vectors: Floats) -> tuple[Ints, list[float | None]]:
    """The class of each vector and its silhouette."""
    n = len(vectors)
    one_class: tuple[Ints, list[float | None]] = np.zeros(n, dtype=np.intp), [None] * n
    if n < 3:
        return one_class
    apart = distances(vectors)
    best, chosen = CLEAR, None
    for labels, nearest in cuts(apart, min(MOST_CLASSES, n - 1)):
        if nearest < APART:
            continue
        values = silhouettes(apart, labels)
        mean = float(np.mean(values))
        if mean > best:
            best, chosen = mean, (labels, values)
    if chosen is None:
        return one_class
    labels, values = chosen
    alone = np.bincount(labels)[labels] == 1
    return labels, [None if single else float(value) for single, value in zip(alone, values, strict=True)]


def cuts(apart: Floats, most: int) -> list[tuple[Ints, float]]:
    """The labels at `most` to 2 classes, from average linkage on a matrix of distances.

    With each the distance between its two nearest classes, the mean over all pairs of members.
    """
    n = len(apart)
    between = apart.copy()
    np.fill_diagonal(between, np.inf)
    size, labels = np.ones(n), np.arange(n)
    found: list[tuple[Ints, float]] = []
    for classes in range(n - 1, 1, -1):
        i, j = sorted(np.unravel_index(int(np.argmin(between)), between.shape))
        # The distance from a joined class to another is the mean over all pairs of members.
        joined = (size[i] * between[i] + size[j] * between[j]) / (size[i] + size[j])
        between[i, :], between[:, i] = joined, joined
        between[i, i] = between[j, :] = between[:, j] = np.inf
        size[i] += size[j]
        labels[labels == j] = i
        if classes <= most:
            found.append((np.unique(labels, return_inverse=True)[1].astype(np.intp), float(between.min())))
    return found


def silhouettes(apart: Floats, labels: Ints) -> Floats:
    """Of each row, (b - a) / max(a, b), a the mean distance to its class, b that to the nearest other; 0 if alone."""
    classes = np.unique(labels)
    sums = np.stack([apart[:, labels == one].sum(axis=1) for one in classes], axis=1)
    sizes = np.array([(labels == one).sum() for one in classes], dtype=np.float64)
    rows = np.arange(len(labels))
    own = np.searchsorted(classes, labels)
    within = sums[rows, own] / np.maximum(sizes[own] - 1, 1)
    others = sums / sizes
    others[rows, own] = np.inf
    outside = others.min(axis=1)
    larger = np.maximum(within, outside)
    found: Floats = np.where((sizes[own] > 1) & (larger > 0), (outside - within) / np.where(larger > 0, larger, 1), 0.0)
    return found
