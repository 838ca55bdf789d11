"""Shreds: parts of the energy of GPUs, and how those side by side become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..series import Floats, Times
from .claims import Ints

JOB, IDLE, UNATTRIBUTED = 0, 1, 2
ENERGY, IDLE_J, BELOW, ABOVE, VARIANCE, SENSED, MEASURED, COUNTER, IDLE_LOW, IDLE_HIGH = range(10)


@dataclass(frozen=True)
class Shreds:
    """Parts of the energy of GPUs; arrays (n,)."""

    gpu: Ints
    """Which of the GPUs, by its number."""
    kind: NDArray[np.int8]
    claim: Ints
    """The row of `Claims`; -1 where it is no job's."""
    began: Times
    ended: Times
    share: Floats
    figures: Floats
    """(10, n): energy, idle energy (NaN: unknown), bounds below and above, variance, sensed energy, seconds measured,
    of these by the counter, and the least and the most that the idle energy may be."""
    reason: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.kind)


def joined(parts: Sequence[Shreds]) -> Shreds:
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Shreds)}
    return Shreds(**{name: np.concatenate(values, axis=-1) for name, values in columns.items()})


def merged(shreds: Shreds, cuts: Times) -> Shreds:
    """What is side by side, of the same claim (or of nobody, with the same share), and not cut apart, as one piece."""
    if not len(shreds):
        return shreds
    piece = np.searchsorted(cuts, shreds.began, "right")
    order = np.lexsort((shreds.began, shreds.share * (shreds.claim < 0), shreds.claim, shreds.kind, shreds.gpu))
    shreds = Shreds(**{f.name: getattr(shreds, f.name)[..., order] for f in fields(Shreds)})
    piece = piece[order]
    new = np.ones(len(shreds), bool)
    new[1:] = (
        (shreds.gpu[1:] != shreds.gpu[:-1]) | (shreds.kind[1:] != shreds.kind[:-1])
        | (shreds.claim[1:] != shreds.claim[:-1]) | (piece[1:] != piece[:-1])
        | (shreds.began[1:] != shreds.ended[:-1]) | ((shreds.claim[1:] < 0) & (shreds.share[1:] != shreds.share[:-1]))
    )  # fmt: skip
    starts = np.flatnonzero(new)
    if len(starts) == len(shreds):
        return shreds
    stops = np.append(starts[1:], len(shreds)) - 1
    lasted = (shreds.ended - shreds.began).astype(float)
    total = np.add.reduceat(lasted, starts)
    bad = shreds.reason != ""
    reasoned = np.add.reduceat(lasted * bad, starts)
    longest = np.where(bad, lasted, -1.0)
    of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(shreds))))
    best = np.lexsort((longest, of))[stops]  # in each piece the longest part with a reason
    reason = np.where((reasoned > 0) & (reasoned >= 0.5 * total), shreds.reason[best], "")
    share = np.add.reduceat(shreds.share * lasted, starts) / np.where(total > 0, total, 1)
    return Shreds(
        shreds.gpu[starts], shreds.kind[starts], shreds.claim[starts], shreds.began[starts], shreds.ended[stops],
        np.where(total > 0, share, shreds.share[starts]), np.add.reduceat(shreds.figures, starts, axis=1), reason,
    )  # fmt: skip
