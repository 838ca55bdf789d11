"""The sentences about what scores and advice leave out or assume: one for each code, from names and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

NOTES = {
    # of the GPUs of a store
    "ambiguous": "{gpus} left out: each of these names fits several GPUs",
    "moved": "{gpus}: seen on more than one node, so treated as having no known node",
    "replaced": "slot {slot} of {node} had {count} GPUs: {last} was measured last and counts as being there",
    "crowded": "slot {slot} of {node} is given for {gpus}: none of them counts as being there",
    "homeless": "{gpus}: the node is not known, so the advice about nodes does not use them",
    # of the runs of a workload
    "left_out": "{workload} was left out: {why}",
    "no_time": "{runs} left out of {workload}: no positive time",
    "variant": "{variant} take {times:.2f} times as long in {workload} as {main}: whether a GPU is slow is said beside "
    "boards of its own VBIOS",
    "crossing": "{count:,} runs of {workload} were left out: their jobs used several nodes, so they say too little "
    "about one node",
    "coupled": "the {gpus:,} GPUs of {workload} were measured in jobs on several GPUs, which finish together. So only "
    "{units:,} sets of GPUs can be compared, from {count:,} jobs; single-GPU runs would say more",
    "sittings": "{runs} of {workload} on one GPU within {span} are more alike than others ({share:.0f} % of the "
    "variance is between such groups): each group counts as one run, {count:,} in all",
    "one_day": "hardly any GPU has {runs} of {workload} from different days (or their dates are not known): the "
    "intervals assume that days differ as SGEMM on a public cluster did, and more where {runs} of a day do",
    # why GPUs cannot be told apart
    "single_gpu": "only one GPU was measured, so there is nothing to compare",
    "measured_once": "fewer than two GPUs were measured twice, so it is not known which differences repeat: measure "
    "again on another day",
    "no_repeat": "the differences between GPUs do not repeat (p = {p:.2f})",
    # why a score may be out of date
    "undated": "the date of its measurement is not known",
    "driver": "the driver changed from {before} to {after} after it was measured (seen {since:%Y-%m-%d})",
    "old": "measured {days:,.0f} days ago",
    "stale": "{which} scores may be out of date (for example: {reason}): measure again",
    # of the GPUs and nodes that a job may have
    "unmeasured": "{count:,} of the {total:,} nodes of the partition were not measured",
    "one_node": "{reference} are compared only with each other: whether {node} is slow as a whole cannot be told",
    "several_models": "the store does not name the model of these GPUs, and their times differ as those of several "
    "models may: then choose a partition (--partition), or import the models (`whorl import --map COLUMN=model`)",
    "slow_homeless": "{gpu} is certainly slow ({times:.2f} times the usual time), but its node is not known: find it",
    "doubtful": "the runs of {gpu} disagree: it takes between {low:.2f} and {high:.2f} times the usual time{others}; "
    "measure again",
    "needed": "{node} is certainly slow, but not excluded: without it fewer than {least:,} GPUs would be left, twice "
    "what the job needs",
    "too_many": "{slow} certainly slow, but of {nodes:,} nodes {allowed} be excluded ({share:.4g} %): repair {others}, "
    "or allow more (--set max-share={enough}%)",
    "too_few_left": "too few GPUs would be left",
    "above_share": "one node of {nodes:,} is more than max-share={share:.4g}% allows",
    "one_kind": "from the runs of {kind} only",
}


def note(code: str, **facts: object) -> str:
    """The sentence of `NOTES` about these facts."""
    return NOTES[code].format(**facts)


def many(count: int, singular: str, plural: str) -> str:
    """`1 node is`, `1,234 nodes are`."""
    return f"1 {singular}" if count == 1 else f"{count:,} {plural}"


def listed(names: Iterable[str]) -> str:
    """A list of names that stays readable."""
    names = list(names)
    return " and ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2:,} others"


def percents(share: float, low: float, high: float) -> str:
    """A share in % with its interval, `6.1 % [5.9, 6.3]`: to two significant digits of its width, a tenth at least."""
    width = 100.0 * (high - low)
    digits = 1 if width <= 0 else min(4, max(1, 1 - math.floor(math.log10(width))))
    middle, *ends = (f"{100.0 * part:.{digits}f}" for part in (share, low, high))
    return f"{middle} % [{', '.join(ends)}]".replace("-0.0,", "0.0,").replace("-0.0]", "0.0]")


def percent(share: float) -> str:
    """A share in %, to a tenth; what rounds to 0 has no sign."""
    return f"{100.0 * share:.1f} %".replace("-0.0", "0.0")
