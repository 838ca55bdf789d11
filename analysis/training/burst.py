"""Burst-parallel plans: on how many GPUs each layer of a network trains, after DeepPool's planner.

A layer runs on 1, 2, 4, ... GPUs, each with an equal part of the batch. Wide layers are faster, but cost more GPU
time; a change of width moves activations. `plan_burst` finds the widths for a limit on GPU time. All times inside are
microseconds; a network is a chain of layers, read from a file as are the times of each.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...store.names import by_number
from ..placement.sets import Gain, ends
from ..statistics.ordering import Floats, Ints
from .gang import Gang

BANDWIDTH = 2.66e5
"""Bytes in a microsecond between two GPUs, as DeepPool's planner assumes."""
LATENCY_US = 40.0
RULES = ("exact", "published")
TRAFFIC = ("right", "published")
UNMEASURED_US = 1.0
"""What a layer takes that the profile does not have, as in DeepPool's planner."""
_SMALL_US = 300.0  # by the published rules a layer that takes no longer than this amplifies nothing

PLANE = {"conv2d", "ReLU2d", "maxPool2d", "avgPool2d", "adAvgPool2d", "BatchNorm2d"}
_CONVOLUTION = ("kernel_size", "stride", "padding")
SAME_WIDTH = {"ReLU2d", "ReLU1d", "ReLU", "flatten", "BatchNorm2d", "BatchNorm1d"}
_KINDS = PLANE | SAME_WIDTH | {"linear"}
_COLUMNS = ("model", "layer", "params", "input_dim", "batch", "forward_us", "backward_us")

LayerKey = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class Layer:
    """A layer of a network: its kind, its parameters, and the size of what one sample puts into it."""

    kind: str
    params: Mapping[str, Any]
    input_dim: tuple[int, ...]

    @property
    def key(self) -> LayerKey:
        """What a profile knows the layer by. Whether a ReLU works in place changes no time."""
        params = {name: value for name, value in self.params.items() if name != "inplace"}
        return self.kind, json.dumps(params, sort_keys=True), self.input_dim

    def gradient_bytes(self, *, published: bool) -> float:
        """The bytes of the layer's gradients. `published`: of a convolution, what DeepPool's planner counts.

        That is 4 (k H + k) with H the height of the output, where 4 k k Cin Cout is right.
        """
        if self.kind == "linear":
            out = int(self.params["out_features"])
            return 4.0 * (int(self.params["in_features"]) * out + out)
        if self.kind != "conv2d":
            return 0.0
        (wide, high), (_, stride), (_, padding) = (_pair(self.params, name) for name in _CONVOLUTION)
        if not published:
            return 4.0 * wide * high * int(self.params["in_channels"]) * int(self.params["out_channels"])
        area = wide * high if isinstance(self.params["kernel_size"], list) else wide
        height = (self.input_dim[2] + 2 * padding - high) // stride + 1
        return 4.0 * (area * height + area)


def _pair(params: Mapping[str, Any], name: str) -> tuple[int, int]:
    value = params[name]
    first, second = value if isinstance(value, list) else (value, value)
    return int(first), int(second)


@dataclass(frozen=True)
class LayerProfile:
    """How long the layers of one model take, forward and backward, by samples on a GPU."""

    file: str
    model: str
    layers: Mapping[LayerKey, Mapping[int, float]]

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """The numbers of samples on a GPU at which any layer was measured."""
        return tuple(sorted({samples for times in self.layers.values() for samples in times}))


def read_network(path: str | Path) -> tuple[Layer, ...]:
    """The chain of layers in a JSON file `{"layers": [[kind, params, input_dim], ...]}`; other keys are passed over.

    Raises `InputError` for a file that is none, and for a layer whose traffic is not known.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        listed = [(kind, dict(params), dims) for kind, params, dims in document["layers"]]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        shape = '{"layers": [[kind, {parameters}, [input sizes]], ...]}'
        raise InputError(f"{path} is no network: write it as {shape}") from error
    if not listed:
        raise InputError(f"{path} has no layers")
    return tuple(_layer(path, number, *parts) for number, parts in enumerate(listed, 1))


def _layer(path: str | Path, number: int, kind: Any, params: dict[str, Any], dims: Any) -> Layer:
    if kind not in _KINDS:
        kinds = ", ".join(sorted(_KINDS))
        raise InputError(f"{path}: layer {number} is a {kind!r}, of which no traffic is known: the kinds are {kinds}")
    try:
        sizes = tuple(int(size) for size in (dims if isinstance(dims, list) else [dims]))
        layer = Layer(kind, params, sizes)
        least = min(layer.gradient_bytes(published=flag) for flag in (False, True))
        sound = bool(sizes) and min(sizes) > 0 and least >= 0
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError):
        sound = False
    if not sound:
        raise InputError(f"{path}: layer {number}, {kind}, lacks a parameter or a size, or has one that is no number")
    return layer


def read_profile(path: str | Path, model: str | None = None) -> LayerProfile:
    """The times of the layers of `model` (of the only one, where None) in a CSV file, plain or gzip.

    Columns: model, layer, params (a JSON object), input_dim (`3,224,224`), batch (samples on a GPU), forward_us,
    backward_us. Raises `InputError`, which names the line.
    """
    opened: Any = gzip.open if Path(path).suffix == ".gz" else open
    times: dict[str, dict[LayerKey, dict[int, float]]] = {}
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            lacking = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if lacking:
                raise InputError(f"{path} is no profile of layers: it lacks the column {lacking[0]}")
            for row in rows:
                layer, samples, took = _timed(row, f"{path}, line {rows.line_num}")
                times.setdefault(row["model"], {}).setdefault(layer.key, {})[samples] = took
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if model is None and len(times) != 1:
        raise InputError(f"{path} has the models {', '.join(times) or 'none'}: choose one with --model")
    name = model or next(iter(times))
    if name not in times:
        raise InputError(f"{path} has no model {name}; it has {', '.join(times)}")
    return LayerProfile(str(path), name, times[name])


def _timed(row: Mapping[str, Any], line: str) -> tuple[Layer, int, float]:
    """The layer, the samples on a GPU and the microseconds of a row."""
    try:
        dims = tuple(int(size) for size in row["input_dim"].split(","))
        layer, samples = Layer(row["layer"], dict(json.loads(row["params"])), dims), int(row["batch"])
        took = float(row["forward_us"]) + float(row["backward_us"])
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{line}: a parameter, a size or a time cannot be read") from error
    if samples < 1 or not 0 <= took < math.inf:
        raise InputError(f"{line}: a batch below 1, or a time that is negative or no number")
    return layer, samples, took


@dataclass(frozen=True)
class Costs:
    """What a network's layers take on each number of GPUs, in microseconds."""

    widths: tuple[int, ...]
    layer_us: Floats
    """(layers, widths) forward, backward and the exchange of gradients."""
    move_us: Floats
    """(layers, widths, widths) moving activations from the width of the layer before (second axis) to its own."""
    single_us: Floats
    """(layers, widths) the layer on one GPU and its exchange of gradients at a width: amplification is beside this."""

    @property
    def single_gpu_us(self) -> float:
        """An iteration on one GPU."""
        return float(self.layer_us[:, 0].sum())


@dataclass(frozen=True)
class BurstQuestion:
    """What a plan is asked for. `limit` None asks for plain data parallelism: all layers on all GPUs."""

    batch: int
    gpus: int
    limit: float | None = 2.0
    rules: str = "exact"
    traffic: str | None = None
    """Of convolutions: "right" or "published"; None goes with the rules."""
    bandwidth: float = BANDWIDTH

    @property
    def published_traffic(self) -> bool:
        """Whether convolutions' gradients count as in DeepPool's planner."""
        return (self.traffic or ("published" if self.rules == "published" else "right")) == "published"


@dataclass(frozen=True)
class BurstPlan:
    """On how many GPUs each layer runs, and what that takes."""

    question: BurstQuestion
    layers: tuple[int, ...]
    """The GPUs of each layer."""
    layer_us: tuple[float, ...]
    """What each takes, with the moving of activations to it."""
    single_gpu_ms: float

    @property
    def time_ms(self) -> float:
        """An iteration."""
        return sum(self.layer_us) / 1000.0

    @property
    def gpu_ms(self) -> float:
        """The time that GPUs work in an iteration, summed over GPUs."""
        return sum(gpus * took for gpus, took in zip(self.layers, self.layer_us, strict=True)) / 1000.0

    @property
    def width(self) -> int:
        """The GPUs that the plan needs."""
        return max(self.layers)

    @property
    def idle_share(self) -> float:
        """The share of the time of the plan's GPUs in which they wait."""
        return 1.0 - self.gpu_ms / (self.time_ms * self.width)

    @property
    def stages(self) -> tuple[tuple[int, float], ...]:
        """Neighbouring layers of one width as (GPUs, share of the iteration), in order."""
        pairs = groupby(zip(self.layers, self.layer_us, strict=True), key=lambda pair: pair[0])
        iteration_us = sum(self.layer_us)
        return tuple((gpus, sum(took for _, took in stage) / iteration_us) for gpus, stage in pairs)

    @property
    def idle_shares(self) -> tuple[float, ...]:
        """The share of an iteration in which each GPU waits; the first works in all layers."""
        return tuple(1.0 - sum(share for gpus, share in self.stages if gpus > role) for role in range(self.width))


def plan_burst(network: Sequence[Layer], profile: LayerProfile, question: BurstQuestion) -> BurstPlan:
    """The plan of a network for a batch and a number of GPUs.

    By the rules `exact` it is the fastest plan whose GPU time is at most `limit` times that of one GPU; by `published`
    it is what DeepPool's planner answers (commit 7f823f2), whose limit is on each layer and whose search depends on the
    order of the candidates. Raises `InputError` for numbers that make no sense and for a profile without the batch.
    """
    costs = costs_of(network, profile, question)
    if question.limit is None:
        if costs.widths[-1] != question.gpus:
            raise InputError(f"a batch of {question.batch} cannot be split over {question.gpus} GPUs in equal parts")
        chosen = [len(costs.widths) - 1] * len(network)
    elif question.rules == "published":
        chosen = _published(costs, question.limit)
    else:
        chosen = _fastest(costs, question.limit)
    numbers = range(len(network))
    moved = [0.0, *(float(costs.move_us[layer, chosen[layer - 1], chosen[layer]]) for layer in numbers[1:])]
    took = tuple(float(costs.layer_us[layer, chosen[layer]]) + moved[layer] for layer in numbers)
    return BurstPlan(question, tuple(costs.widths[place] for place in chosen), took, costs.single_gpu_us / 1000.0)


def costs_of(network: Sequence[Layer], profile: LayerProfile, question: BurstQuestion) -> Costs:
    """The costs of a network at each width that splits the batch into equal parts. Raises `InputError`."""
    _check(question)
    batch, bandwidth = question.batch, question.bandwidth
    widths = [1 << power for power in range(question.gpus.bit_length()) if batch % (1 << power) == 0]
    for gpus in widths:
        if batch // gpus not in profile.batches:
            having = ", ".join(map(str, profile.batches))
            raise InputError(
                f"{profile.file} has no times of {profile.model} at {batch // gpus} samples on a GPU, which a batch of "
                f"{batch} needs at a width of {gpus}; it has {having}"
            )
    if not any(layer.key in profile.layers for layer in network):
        raise InputError(f"{profile.file} has none of the network's layers for {profile.model}: is it another model?")
    worked = np.array(
        [[profile.layers.get(layer.key, {}).get(batch // gpus, UNMEASURED_US) for gpus in widths] for layer in network]
    )
    gradients = [layer.gradient_bytes(published=question.published_traffic) / bandwidth for layer in network]
    pays_alone = [question.published_traffic and layer.kind == "conv2d" for layer in network]
    pays = (np.array(widths) > 1) | np.array(pays_alone)[:, None]
    exchanged = np.where(pays, np.array(gradients)[:, None], 0.0)
    moved = np.zeros((len(network), len(widths), len(widths)))
    for number, (layer, following) in enumerate(pairwise(network), 1):
        for source, target in np.ndindex(len(widths), len(widths)):
            samples = batch // widths[source], batch // widths[target]
            moved[number, source, target] = _moving_us(layer, following, samples, bandwidth)
    return Costs(tuple(widths), worked + exchanged, moved, worked[:, :1] + exchanged)


def _check(question: BurstQuestion) -> None:
    if question.batch < 1:
        raise InputError("the batch must be at least 1 sample")
    if question.gpus < 1 or question.gpus & (question.gpus - 1):
        raise InputError(f"{question.gpus} GPUs: a burst plan needs a power of two, such as 8 or 16")
    if question.limit is not None and not question.limit >= 1:
        raise InputError(f"the limit {question.limit:g} must be at least 1, or data-parallel")
    if not 0 < question.bandwidth < math.inf:
        raise InputError("the bandwidth must be a positive number of bytes in a microsecond")
    if question.rules not in RULES or question.traffic not in (None, *TRAFFIC):
        raise InputError(f"the rules are {' or '.join(RULES)}, the traffic of convolutions {' or '.join(TRAFFIC)}")


def _moving_us(before: Layer, after: Layer, samples: tuple[int, int], bandwidth: float) -> float:
    """Moving a layer's output to the GPUs of the next, forward and its gradient backward.

    `samples`: on a GPU of the layer before and after. What a GPU has already need not move. Between two layers of
    images the GPUs that are new, or that stop, have nothing in common with the others.
    """
    size = 4.0 * math.prod(after.input_dim)
    common = min(samples) * size
    leaving, coming = samples[0] * size - common, samples[1] * size - common
    if before.kind in PLANE and after.kind in PLANE and samples[0] != samples[1]:
        leaving, coming = (leaving, samples[1] * size) if samples[0] > samples[1] else (samples[0] * size, coming)
    most = max(leaving, coming)
    took = 2.0 * (most / bandwidth + LATENCY_US) if most > 0 else 0.0
    return took * 1000.0 if after.kind in SAME_WIDTH else took


def _published(costs: Costs, limit: float) -> list[int]:
    """The number of each layer's width, as DeepPool's planner finds them.

    For each width of a layer it takes the best width of the layer before, in ascending order: a candidate replaces the
    best so far if its total is lower and the amplification of the layer before is below the limit, or below that of the
    best so far.
    """
    places = range(len(costs.widths))
    totals = [float(took) for took in costs.layer_us[0]]
    lasts = list(totals)
    paths = [[place] for place in places]
    for layer in range(1, len(costs.layer_us)):
        amplified = [
            last * gpus / single if single > _SMALL_US else 1.0
            for last, gpus, single in zip(lasts, costs.widths, costs.single_us[layer - 1], strict=True)
        ]
        best = []
        for place in places:
            took = costs.layer_us[layer, place] + costs.move_us[layer, :, place]
            source = 0
            for candidate in places[1:]:
                lower = totals[candidate] + took[candidate] < totals[source] + took[source]
                if lower and (amplified[candidate] < limit or amplified[candidate] < amplified[source]):
                    source = candidate
            best.append((totals[source] + float(took[source]), float(took[source]), [*paths[source], place]))
        totals, lasts, paths = map(list, zip(*best, strict=True))
    return paths[int(np.argmin(totals))]


def _fastest(costs: Costs, limit: float) -> list[int]:
    """The number of each layer's width in the fastest plan whose GPU time is at most `limit` times that of one GPU.

    Exact: for each width of a layer all points are kept of which none is both faster and cheaper in GPU time.
    """
    widths = np.array(costs.widths, dtype=np.float64)
    cheapest = (costs.layer_us * widths).min(axis=1)
    following = np.append(np.cumsum(cheapest[::-1])[::-1][1:], 0.0)  # the least GPU time of the layers that follow
    budget = limit * costs.single_gpu_us * (1.0 + 1e-12) + 1e-9
    fronts = [(np.array([0.0]), np.array([0.0]))]  # of each width of the layer before: times, and GPU times
    sources: list[list[tuple[Ints, Ints]]] = []
    for layer, layer_us in enumerate(costs.layer_us):
        sizes = [len(times) for times, _ in fronts]
        width_before = np.repeat(np.arange(len(fronts)), sizes)
        point_before = np.concatenate([np.arange(size) for size in sizes])
        times_before, gpu_times_before = (np.concatenate(column) for column in zip(*fronts, strict=True))
        fronts, origins = [], []
        for place, gpus in enumerate(widths):
            took = layer_us[place] + costs.move_us[layer, width_before, place]
            times, gpu_times = times_before + took, gpu_times_before + gpus * took
            order = np.lexsort((gpu_times, times))
            order = order[gpu_times[order] + following[layer] <= budget]
            order = order[np.diff(np.minimum.accumulate(gpu_times[order]), prepend=np.inf) < 0]
            fronts.append((times[order], gpu_times[order]))
            origins.append((width_before[order], point_before[order]))
        sources.append(origins)
    ends = [float(times[0]) if len(times) else math.inf for times, _ in fronts]
    place, point = int(np.argmin(ends)), 0
    path = []
    for origins in reversed(sources):
        path.append(place)
        widths_before, points_before = origins[place]
        place, point = int(widths_before[point]), int(points_before[point])
    return path[::-1]


def stretched(scores: Floats, stages: Sequence[tuple[int, float]]) -> Floats:
    """(...) by how much longer an iteration takes on GPUs of these `scores` (..., GPUs) than on GPUs of score 1.

    The first GPU works in all stages, and each stage is as slow as the slowest of its GPUs.
    """
    slowest = np.maximum.accumulate(scores, axis=-1)
    stages_at = slowest[..., [gpus - 1 for gpus, _ in stages]]
    longer: Floats = stages_at @ np.array([share for _, share in stages])
    return longer


@dataclass(frozen=True)
class BurstPlacement:
    """Which GPUs a plan should have, in their roles, and how long its iteration then takes."""

    cluster: str
    workload: str
    gpus: tuple[str, ...]
    """Names, in the order of their roles: the first works in all layers."""
    nodes: tuple[str, ...]
    time_ms: float
    """The mean and the 90 % interval of an iteration, from what the runs leave open of the scores."""
    lower_ms: float
    upper_ms: float
    gains: tuple[Gain, ...]
    """Time saved against the same GPUs in random roles ("roles") and a random set ("random")."""
    reason: str | None
    """Why the GPUs cannot be told apart; None where they can."""


def place(plan: BurstPlan, gang: Gang) -> BurstPlacement:
    """The best GPUs for a plan: the wide layers are as slow as the slowest of all, so these are few nodes' fastest.

    The profile's times count as those of the fleet's median GPU. Raises `InputError` where there are too few.
    """

    def time_of(scores: Floats) -> Floats:
        return stretched(scores, plan.stages)

    chosen = gang.best(plan.width)
    took = plan.time_ms * time_of(gang.draws[:, chosen])
    return BurstPlacement(
        gang.cluster,
        gang.workload,
        tuple(gang.names[gpu] for gpu in chosen),
        tuple(sorted({node for gpu in chosen if (node := gang.nodes[gpu]) is not None}, key=by_number)),
        float(took.mean()),
        *ends(took),
        gang.gains(chosen, time_of),
        gang.reason,
    )


@dataclass(frozen=True)
class BurstRow:
    """A plan beside plain data parallelism, and its GPUs."""

    plan: BurstPlan
    data_parallel_ms: float | None
    """An iteration with all layers on all GPUs; None where the batch cannot be split over them."""
    placement: BurstPlacement | None = None


@dataclass(frozen=True)
class BurstAnswer:
    """The plans of a network, in the order of the questions."""

    profile: LayerProfile
    network: tuple[Layer, ...]
    rows: tuple[BurstRow, ...]

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """The numbers, from 1, of the layers that the profile does not have: each counts as `UNMEASURED_US`."""
        return tuple(n for n, layer in enumerate(self.network, 1) if layer.key not in self.profile.layers)


def burst_answer(
    network: Sequence[Layer], profile: LayerProfile, questions: Sequence[BurstQuestion], gang: Gang | None = None
) -> BurstAnswer:
    """A plan for each question; with a gang also the GPUs of each. Raises `InputError`."""
    rows = []
    for question in questions:
        plan = plan_burst(network, profile, question)
        splits = question.batch % question.gpus == 0
        parallel = plan_burst(network, profile, replace(question, limit=None)).time_ms if splits else None
        rows.append(BurstRow(plan, parallel, None if gang is None else place(plan, gang)))
    return BurstAnswer(profile, tuple(network), tuple(rows))
