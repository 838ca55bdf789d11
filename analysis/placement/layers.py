"""The chain of layers of a network, and how long each layer takes: the two files that `whorl advise burst` reads."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError

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
        raise InputError(f"{path}: layer {number} is a {kind!r}, of which no traffic is known: {_known_kinds()}")
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


def _known_kinds() -> str:
    return f"the kinds are {', '.join(sorted(_KINDS))}"


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
