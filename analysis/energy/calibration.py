"""Gain and offset of each board's power sensor, learnt from the power of its node by Bayesian linear regression.

    node x efficiency of power supplies = host + sum over boards of ((1 + h) x read power + p)

Boards of a node are told apart by working at different times. What all boards have in common cannot be told from what
the host draws more when GPUs work: that part stays as unsure as it was, and boards share it. Offsets p cannot be told
from the base of the host: they follow h as those of measured boards do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ... import __version__
from ...store.catalog import quoted
from ...store.instants import date_of_ns
from ...store.power_sensors import NORMAL_95, SensorError
from ...store.schema import CALIBRATIONS, arrow_schema
from ...store.vocabulary import CalibrationFinding, PowerOf
from ..by_number import by_number
from .boards import GPU, BoardErrors, columns_of, shared_pairs
from .books import time_covered
from .meter import Meters
from .nodes import OF_HOST, WHOLE, NodeMeter, node_meters
from .readings import meters_of_many
from .sensor import Floats, Times
from .settings import EnergySettings, NodeFacts, find_settings

if TYPE_CHECKING:
    from ...store import Store

    Progress = Callable[[str], None]

SCHEMA = "whorl.energy.calibrate/1"

SUPPLY = {PowerOf.NODE_WALL: (0.94, 0.015), PowerOf.NODE_DC: (1.0, 0.0), PowerOf.NODE: (0.97, 0.02)}
"""Efficiency of the power supplies between boards and meter, and its standard deviation. 80 PLUS Platinum and Titanium
ask for 0.90 to 0.96 at the loads of servers."""
FOLLOWS, FOLLOWS_COUNTED = (0.02, 0.03), (0.01, 0.02)
"""What a host draws more for each W of its GPUs (fans, memory, network, CPUs), and its standard deviation; the second
where counters of its CPUs say their part. Assumed."""
COUNTED = (1.1, 0.1)
"""What a host draws for each W that the counter of its CPUs or memory says, which does not see their regulators."""
DRIFT = 0.01
"""Standard deviation of the change of h from the middle of the time to its ends."""
LAGS_S = (0.0, -2.0, -1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 45.0, 60.0)
WIDTHS_S = (1.0, 5.0, 10.0, 30.0, 60.0)
"""Over what time a meter may average that does not say it."""
_TRIED = 1_000  # readings by which the lag is chosen
_BIN_S, _LONG_NS = 10.0, 60 * 10**9  # the least and the most that windows last, but of slower meters
_MOST_WINDOWS, _LEAST_WINDOWS, _FEW_WINDOWS = 20_000, 10, 100
_READ = 0.9  # of a window
_CHANGE, _CHANGE_W, _STEADY = 0.05, 5.0, 0.2
"""A GPU changes where its power does by more than this part of its range, and W; only steady windows count where this
part of all windows is steady."""
_NEIGHBOURS = 1.5  # windows
_TAIL = 4.0  # degrees of freedom of Student's t, of which residuals are taken to be
_ROUNDS = 12
_TOLD_APART = 0.5  # of the variance between the boards of a node
_RANGE = 0.03  # of its mean power: a GPU whose power has a smaller standard deviation tells nothing
_PLAUSIBLE = (0.75, 1.3)
"""By how many W a node's meter may move for each W of its GPUs: else it is stuck, or no meter of this node alone."""
_NODES_AT_ONCE = 16
_AROUND_NS = 120 * 10**9


@dataclass(frozen=True)
class NodeWindows:
    """The power of a node and of its n GPUs in k windows of time, W."""

    meter: NodeMeter
    gpus: Sequence[tuple[str, str]]
    ended_ns: Times
    node_w: Floats
    gpu_w: Floats
    """(n, k) as read."""
    host_w: Floats
    """(m, k) what counters of m parts of the host say."""
    lag_s: float
    """By how much the meter of the node is later than the readings of its GPUs."""

    @property
    def watts_per_watt(self) -> float:
        """By how much the power behind the power supplies moves for each W of the GPUs, by least squares; NaN where
        their power does not change."""
        total = self.gpu_w.sum(axis=0) - self.gpu_w.sum(axis=0).mean()
        square = float((total**2).sum())
        return float(SUPPLY[self.meter.covers][0] * (self.node_w * total).sum() / square) if square else math.nan


@dataclass(frozen=True)
class Calibration:
    """What is known of the sensors of a store's boards, after a calibration."""

    boards: pl.DataFrame
    """A row for each GPU: cluster, gpu, name, node, model; gain_pct and offset_w of its sensor, which reads
    (1 + gain) x true power + offset, each with the ends of its 95 % interval (_low_, _high_); source, a code of
    `ErrorSource`; and where it was calibrated, windows, since, until, meter (a code of `PowerMeter`), learnt and
    finding, as in the table `calibrations`."""
    nodes: int
    """How many nodes were used."""
    refused: pl.DataFrame
    """Nodes that were not used, as their meter does not follow their GPUs: cluster, node, meter, and watts_per_watt, by
    how many W it moves for each W of the GPUs."""
    stored: bool


def calibrate(
    store: Store | str | Path,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    settings: EnergySettings | str | Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """Learn from the power of nodes what the sensors of their boards are wrong by, and store it, but with `dry_run`.

    Energy is then that of calibrated boards. `since` and `until` are UTC without zone. Raises InputError for settings
    that cannot be used, a time without telemetry and a store without GPUs, StoreError where the store cannot be read,
    or written.
    """
    from ...store import Store as StoreClass

    opened = store if isinstance(store, StoreClass) else StoreClass.open(store)
    stated = find_settings(opened.root, settings)
    gpus = opened.sql("select cluster, gpu, model from gpus_now").polars()
    if gpus.is_empty() or since is not None or until is not None:
        time_covered(opened, cluster, since, until)
    by_cluster: dict[str, list[NodeWindows]] = {}
    refused = []
    for windows in windows_of_nodes(opened, cluster=cluster, since=since, until=until, progress=progress):
        slope, meter = windows.watts_per_watt, windows.meter
        if _PLAUSIBLE[0] <= slope <= _PLAUSIBLE[1]:
            by_cluster.setdefault(meter.cluster, []).append(windows)
        else:
            refused.append((meter.cluster, meter.node, meter.source.value, slope))
    models = {(name, gpu): model for name, gpu, model in gpus.rows()}
    parts = [calibrated_boards(of_nodes, models, stated) for of_nodes in by_cluster.values()]
    rows = pl.concat([pl.DataFrame(schema=_ROW), *parts])
    stored = not dry_run and bool(rows.height)
    if stored:
        now = datetime.now(UTC).replace(tzinfo=None)
        with_time = rows.with_columns(pl.lit(now).alias("made_at"), pl.lit(__version__).alias("version"))
        schema = arrow_schema(CALIBRATIONS.name)
        table = with_time.select(CALIBRATIONS.names).to_arrow().cast(schema.remove_metadata())
        opened.append({CALIBRATIONS.name: table}, f"calibration-{now:%Y%m%dT%H%M%S%f}")
    return Calibration(
        _boards(opened, rows, stated.sensor, cluster), sum(map(len, by_cluster.values())),
        pl.DataFrame(refused, _REFUSED, orient="row"), stored,
    )  # fmt: skip


def _boards(store: Store, rows: pl.DataFrame, stated: SensorError, cluster: str | None) -> pl.DataFrame:
    """`Calibration.boards`: the `rows` just made, else what the store has of a board."""
    condition = "" if cluster is None else f" where cluster = {quoted(cluster)}"
    boards = store.sql(f"select cluster, gpu, name, node, model from gpus_now{condition}").polars()
    stored = store.sql("select * from calibrations_now").polars().select(*_ROW).cast(_ROW)  # type: ignore[arg-type]
    learnt = pl.concat([rows, stored.join(rows, on=GPU, how="anti", nulls_equal=True)])
    errors = BoardErrors.of_rows(learnt, stated).with_models(store)
    for columns in (
        errors.boards.select(*GPU, "h", "p", "source"), errors.half_widths(boards),
        learnt.select(*GPU, "windows", "since", "until", pl.col("source").alias("meter"), "learnt", "finding"),
    ):  # fmt: skip
        boards = boards.join(columns, on=GPU, how="left", nulls_equal=True, maintain_order="left")
    # true = (1 + h) x read + p: the gain and offset of the sensor are the inverse of that, and its ends change places.
    h, p = (pl.col(name).fill_null(mean) for name, mean in zip("hp", errors.usual.mean, strict=True))
    ends = (("", 0), ("_low", 1), ("_high", -1))
    boards = boards.with_columns(
        *((100 / (1 + h + side * pl.col("gain")) - 100).alias(f"gain{end}_pct") for end, side in ends),
        *((-(p + side * pl.col("offset_w")) / (1 + h)).alias(f"offset{end}_w") for end, side in ends),
        pl.col("source").fill_null(stated.source.value),
    ).select(
        *GPU, "name", "node", "model", "^gain_.*$", "^offset_.*$", "source", "windows", "since", "until", "meter",
        "learnt", "finding",
    )  # fmt: skip
    return boards.sort(*by_number("cluster", "node", "name"), "gpu", nulls_last=True)


# -- windows --------------------------------------------------------------------------------------------------


def windows_of_nodes(
    store: Store,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    progress: Progress | None = None,
) -> Iterator[NodeWindows]:
    """The windows of each node of which some meter reads all, in order of cluster and node. Raises StoreError."""
    gpus_of: dict[tuple[str, str], list[tuple[str, str]]] = {}
    gpus = store.sql("select cluster, node, gpu from gpus_now where parent is null and node is not null").polars()
    for name, node, gpu in gpus.sort("cluster", "node", "gpu").rows():  # the last digits depend on the order
        gpus_of.setdefault((name, node), []).append((name, gpu))
    by_node: dict[tuple[str, str], list[NodeMeter]] = {}
    for meter in node_meters(store, cluster=cluster, since=since, until=until):
        by_node.setdefault((meter.cluster, meter.node), []).append(meter)
    nodes = [key for key, of_node in by_node.items() if key in gpus_of and of_node[0].covers in WHOLE]
    for begun in range(0, len(nodes), _NODES_AT_ONCE):
        if progress is not None:
            progress(f"reading nodes: {begun:,} of {len(nodes):,}")
        part = nodes[begun : begun + _NODES_AT_ONCE]
        since_ns = min(int(by_node[key][0].ts_ns[0]) for key in part) - _AROUND_NS
        until_ns = max(int(by_node[key][0].ts_ns[-1]) for key in part) + _AROUND_NS
        keys = [gpu for key in part for gpu in gpus_of[key]]
        read = list(meters_of_many(store, gpus=keys, since_ns=since_ns, until_ns=until_ns))
        if not read:
            continue
        meters = Meters.joined(read)
        number_of = {gpu: number for number, gpu in enumerate(meters.gpus)}
        for key in part:
            numbers = np.array([number_of[gpu] for gpu in gpus_of[key] if gpu in number_of], np.int64)
            firsts = {meter.covers: meter for meter in reversed(by_node[key])}
            counters = [firsts[code] for code in OF_HOST if code in firsts]
            if len(numbers):
                windows = windows_of(by_node[key][0], counters, meters.only(numbers))
                if windows is not None:
                    yield windows


def windows_of(meter: NodeMeter, counters: Sequence[NodeMeter], meters: Meters) -> NodeWindows | None:
    """The windows in which a node, the parts of its host that have counters, and all its GPUs (`meters`) were read, of
    10 s or more; None of fewer than ten.

    The lag of the meter, and the time that it averages over where it does not say it, are those at which the changes of
    its power follow the changes of the GPUs' power best.
    """
    has_power = np.isfinite(meter.watts)
    ts, node_w, window_s = meter.ts_ns[has_power], meter.watts[has_power], meter.window_s[has_power]
    if len(ts) < _LEAST_WINDOWS:
        return None
    widths = (None,) if np.isfinite(window_s).mean() >= _READ else WIDTHS_S

    def gpus_at(width: float | None, lag_s: float, readings: int) -> tuple[Floats, Times, Times]:
        ended = ts[:readings] - round(lag_s * 1e9)
        lasted_s = window_s[:readings] if width is None else np.full(len(ended), width)
        began = ended - (1e9 * lasted_s).astype(np.int64)
        return _mean_w(meters, began, ended), began, ended

    def agreement(width: float | None, lag_s: float) -> float:
        changes = np.diff(np.stack([gpus_at(width, lag_s, _TRIED)[0].sum(axis=0), node_w[:_TRIED]]))
        changes = changes[:, np.isfinite(changes).all(axis=0)]
        if changes.shape[1] < _LEAST_WINDOWS or (np.ptp(changes, axis=1) == 0).any():
            return -1.0
        return float(np.corrcoef(changes)[0, 1])

    width, lag_s = max(product(widths, LAGS_S), key=lambda choice: agreement(*choice))
    gpu_w, began, ended = gpus_at(width, lag_s, len(ts))
    host_w = [
        np.where(seconds >= _READ * (ended - began) / 1e9, joules / np.maximum(seconds, 1e-9), np.nan)
        for joules, seconds in (counter.over(began, ended) for counter in counters)
    ]
    rows = np.stack([ts.astype(np.float64), node_w, *gpu_w, *host_w])
    complete = np.isfinite(rows).all(axis=0)
    rows, ts = rows[:, complete], ts[complete]
    if not len(ts):
        return None
    size_ns = round(1e9 * max(_BIN_S, (ts[-1] - ts[0]) / 1e9 / _MOST_WINDOWS))
    rows = _binned(rows, ts // size_ns)
    gpu_rows = slice(2, len(meters) + 2)
    steady = np.flatnonzero(_steady(rows[gpu_rows]))
    if len(steady) >= _STEADY * rows.shape[1]:  # neighbours make one window of up to a minute: readings have noise
        run = np.cumsum(np.diff(steady, prepend=-9) > 1)
        position = np.arange(len(run)) - np.searchsorted(run, run)
        rows = _binned(rows[:, steady], run * rows.shape[1] + position * size_ns // _LONG_NS)
    if rows.shape[1] < _LEAST_WINDOWS:
        return None
    return NodeWindows(
        meter, meters.gpus, rows[0].astype(np.int64), rows[1], rows[gpu_rows], rows[gpu_rows.stop :], lag_s
    )


def _binned(rows: Floats, bins: NDArray[np.int64]) -> Floats:
    """The means of the columns of each bin; `bins` increase."""
    firsts = np.flatnonzero(np.diff(bins, prepend=bins[0] - 1))
    return np.asarray(np.add.reduceat(rows, firsts, axis=1) / np.diff(firsts, append=len(bins)))


def _steady(gpu_w: Floats) -> NDArray[np.bool_]:
    """The windows in which the power of no GPU changes, nor between them and the windows beside them: at a change, the
    clocks and lags of meters would be taken for gains."""
    low, high = np.quantile(gpu_w, (0.02, 0.98), axis=1)
    limit = np.maximum(_CHANGE * (high - low), _CHANGE_W)
    changes = (np.abs(np.diff(gpu_w)) > limit[:, None]).any(axis=0)
    return np.asarray(~(np.append(changes, False) | np.append(False, changes)))


def _mean_w(meters: Meters, began: Times, ended: Times) -> Floats:
    """(n, k) the mean power of each GPU in each window; NaN where it was not read."""
    n, k = len(meters), len(began)
    energies = meters.over(np.repeat(np.arange(n), k), np.tile(began, n), np.tile(ended, n))
    lasted = np.tile(ended - began, n) / 1e9
    complete = (energies.measured_s >= _READ * lasted) & (energies.reason == "")
    return np.where(complete, energies.energy_j / lasted, np.nan).reshape(n, k)


# -- regression -----------------------------------------------------------------------------------------------

_REFUSED = {"cluster": pl.String(), "node": pl.String(), "meter": pl.String(), "watts_per_watt": pl.Float64()}
_FACTORS = pl.List(pl.Struct({"factor": pl.String(), "h": pl.Float64(), "p": pl.Float64()}))
_ROW: dict[str, pl.DataType] = {
    "cluster": pl.String(), "gpu": pl.String(), "node": pl.String(), "model": pl.String(), "since": pl.Datetime("us"),
    "until": pl.Datetime("us"), "source": pl.String(), "windows": pl.Int64(), "h": pl.Float64(), "p": pl.Float64(),
    "hh": pl.Float64(), "hp": pl.Float64(), "pp": pl.Float64(), "shared": _FACTORS, "learnt": pl.Float64(),
    "finding": pl.String(),
}  # fmt: skip


@dataclass(frozen=True)
class _Prior:
    """What is known of the n boards of a node before: of h the mean, the board's own variance and how it moves with f
    factors that boards share; p follows h along a line, and varies around it."""

    h: Floats
    variance: Floats
    loads: Floats
    """(n, f)"""
    p: Floats
    slope: Floats
    """p moves by it when h moves by 1."""
    own_pp: Floats
    """The variance of p around that line, of the board's own."""
    shared_p: Floats
    """The standard deviation of p around that line, of what boards of the model share."""


@dataclass(frozen=True)
class _Fit:
    """What the windows of a node say of h of its boards, given the f + 1 factors u that boards of the cluster share:
    those of models, and what hosts and power supplies add for each W. They are standard normal before."""

    windows: NodeWindows
    prior: _Prior
    h: Floats
    """(n,) where u = 0."""
    loads: Floats
    """(n, f + 1) how it moves with u."""
    covariance: Floats
    """(n, n) given u."""
    of_meter: Floats
    """(n,) how h moves with the gain of the node's own meter."""
    drift: Floats
    """(2, n) the change of h from the middle of the time to its end, and its standard deviation."""
    precision: Floats
    """(f + 1, f + 1) what the windows say of u, and its product with the mean."""
    weighted: Floats


def calibrated_boards(
    windows: Sequence[NodeWindows], models: Mapping[tuple[str, str], str | None], stated: EnergySettings | None = None
) -> pl.DataFrame:
    """What the windows of the nodes of one cluster say of the sensors of their boards: rows of `calibrations`, but for
    `made_at` and `version`. `models`: by cluster and GPU.

    Nodes are fitted one by one, given what boards and hosts of the cluster share; that is then known from all of them.
    """
    stated = stated or EnergySettings()
    names = sorted({models.get(gpu) or "" for of_node in windows for gpu in of_node.gpus})
    fits = [_fit(of_node, _prior(of_node, names, models, stated.sensor), stated.node) for of_node in windows]
    covariance = np.linalg.inv(np.eye(len(names) + 1) + sum(fit.precision for fit in fits))
    factors = covariance @ sum(fit.weighted for fit in fits)
    root = np.linalg.cholesky(covariance)
    rows = [row for fit in fits for row in _rows(fit, factors, root, names, models)]
    return pl.DataFrame(rows, schema=_ROW, orient="row")


def _prior(
    windows: NodeWindows, names: Sequence[str], models: Mapping[tuple[str, str], str | None], stated: SensorError
) -> _Prior:
    """The prior of the boards of a node; the factors are those of the models `names`."""
    columns = []
    loads = np.zeros((len(windows.gpus), len(names)))
    for board, gpu in enumerate(windows.gpus):
        error = stated.of_board(models.get(gpu))
        h, p, hh, hp, pp, _ = columns_of(error)
        (load, _), (_, shared_p) = shared_pairs(error) or [(0.0, 0.0), (0.0, 0.0)]
        loads[board, names.index(models.get(gpu) or "")] = load
        slope = hp / hh if hh else 0.0
        columns.append((h, max(hh, 1e-12), p, slope, pp - slope * hp, shared_p))
    h, variance, p, slopes, own_pp, shared = np.array(columns).T
    return _Prior(h, variance, loads, p, slopes, own_pp, shared)


def _fit(windows: NodeWindows, prior: _Prior, facts: NodeFacts) -> _Fit:
    """Bayesian linear regression of the power of a node on that of its boards,

        node x efficiency - sum of read = sum of h_i read_i + s x sum of read + c x counted + base + noise

    where s is what host, power supply and meter add for each W; h may drift along a line. The noise is autoregressive
    of first order and has the tails of Student's t; its variance is raised by what correlation is left.
    """
    gpu_w, n, counters = windows.gpu_w, len(windows.gpu_w), len(windows.host_w)
    efficiency, supply_sd = SUPPLY[windows.meter.covers]
    follows, follows_sd = FOLLOWS_COUNTED if counters else FOLLOWS
    gain_sd, sd_of_pct = windows.meter.gain_sd, 1 / 100 / NORMAL_95  # what is stated holds for 95 % of nodes
    if facts.efficiency is not None:
        efficiency, supply_sd = facts.efficiency, facts.efficiency_within_pct * sd_of_pct
    if facts.host_pct is not None:
        follows, follows_sd = facts.host_pct / 100, facts.host_within_pct * sd_of_pct
    if facts.meter_within_pct is not None:
        gain_sd = max(facts.meter_within_pct * sd_of_pct, 1e-5)
    time = np.interp(windows.ended_ns, windows.ended_ns[[0, -1]], (-1.0, 1.0))
    total = gpu_w.sum(axis=0)
    x = np.stack([*gpu_w, *(time * gpu_w), *windows.host_w, total, np.ones(len(total))]).T
    y = windows.node_w * efficiency - total
    mean = np.concatenate([prior.h, np.zeros(n), [COUNTED[0]] * counters, [follows, 0.0]])
    deviation = np.concatenate([np.sqrt(prior.variance), [DRIFT] * n, [COUNTED[1]] * counters, [gain_sd, 1e4]])
    before = np.diag(deviation**-2)
    factors = np.zeros((len(mean), prior.loads.shape[1] + 1))
    factors[:n, :-1] = prior.loads
    factors[-2, -1] = math.hypot(follows_sd, supply_sd)

    steps = np.diff(windows.ended_ns) / np.median(np.diff(windows.ended_ns))
    rows, weights, rho = np.column_stack([x, y]), np.ones(len(y)), 0.0
    scale = float(np.var(y)) + 1e-6
    for _ in range(_ROUNDS):
        correlation = np.append(0.0, rho**steps)[:, None]  # with the window before
        white = (rows - correlation * np.roll(rows, 1, axis=0)) / np.sqrt(1 - correlation**2)
        wx, wy = white[:, :-1], white[:, -1]
        information, product_y = (wx.T * weights) @ wx / scale, wx.T @ (weights * wy) / scale
        theta = np.linalg.solve(information + before, product_y + before @ mean)
        noise, residual = wy - wx @ theta, y - x @ theta
        scale = max(float((weights * noise**2).mean()), 1e-2)
        weights = (_TAIL + 1) / (_TAIL + noise**2 / scale)
        limit = 7.5 * float(np.median(np.abs(residual - np.median(residual)))) + 0.5
        residual = np.clip(residual - np.median(residual), -limit, limit)
        pairs = (residual[1:] * residual[:-1])[steps < _NEIGHBOURS]
        rho = float(np.clip(pairs.mean() / (residual**2).mean(), 0.0, 0.99)) if len(pairs) else 0.0
    noise = noise * np.sqrt(weights)
    lags = range(1, 11) if len(noise) > 10 else ()  # fewer windows do not show how they depend on each other
    correlated = [float((noise[lag:] * noise[:-lag]).mean() / (noise**2).mean()) for lag in lags]
    raised = max(1.0, 1 + 2 * sum(correlated))
    information, product_y = information / raised, product_y / raised
    after = np.linalg.inv(information + before)
    # Of the likelihood of u, once the parameters of the node are integrated out.
    of_factors = factors.T @ (np.eye(len(mean)) - information @ after)
    return _Fit(
        windows, prior,
        h=(after @ (product_y + before @ mean))[:n],
        loads=(after @ before @ factors)[:n],
        covariance=after[:n, :n],
        of_meter=after[:n, -2] / math.sqrt(after[-2, -2]),
        drift=np.stack([theta[n : 2 * n], np.sqrt(np.diag(after)[n : 2 * n])]),
        precision=of_factors @ information @ factors,
        weighted=of_factors @ (product_y - information @ mean),
    )  # fmt: skip


def _rows(
    fit: _Fit, factors: Floats, root: Floats, names: Sequence[str], models: Mapping[tuple[str, str], str | None]
) -> Iterator[tuple[object, ...]]:
    """The rows of `calibrated_boards` of one node, where the shared factors have the mean `factors`, and a covariance
    of which `root` is a root."""
    windows, prior, meter = fit.windows, fit.prior, fit.windows.meter
    h = fit.h + fit.loads @ factors
    p = prior.p + prior.slope * (h - prior.h)
    change, change_sd = fit.drift
    hh = np.diag(fit.covariance) - fit.of_meter**2 + change**2 + change_sd**2
    learnt = 1 - _between(fit.covariance) / _between(np.diag(prior.variance))
    steady = windows.gpu_w.std(axis=1) < _RANGE * windows.gpu_w.mean(axis=1)
    shared_h = np.column_stack([fit.loads @ root, fit.of_meter])
    factor_names = [f"{meter.cluster} {name}" for name in (*names, "hosts", f"{meter.node} meter")]
    ends = [date_of_ns(int(windows.ended_ns[at])) for at in (0, -1)]
    for board, gpu in enumerate(windows.gpus):
        finding = (
            CalibrationFinding.FEW if len(windows.node_w) < _FEW_WINDOWS
            else CalibrationFinding.STEADY if steady[board]
            else CalibrationFinding.TOGETHER if learnt[board] < _TOLD_APART
            else CalibrationFinding.DRIFTS if abs(change[board]) > max(2.5 * change_sd[board], 0.5 * DRIFT)
            else CalibrationFinding.OK
        )  # fmt: skip
        slope, model, variance = float(prior.slope[board]), models.get(gpu), float(hh[board])
        shared = [
            {"factor": name, "h": load, "p": slope * load}
            for name, load in zip(factor_names, shared_h[board].tolist(), strict=True)
        ]
        shared.append({"factor": f"{meter.cluster} {model} offset", "h": 0.0, "p": float(prior.shared_p[board])})
        yield (
            *gpu, meter.node, model, *ends, meter.source.value, len(windows.node_w), float(h[board]), float(p[board]),
            variance, slope * variance, slope**2 * variance + float(prior.own_pp[board]), shared,
            float(learnt[board]), finding.value,
        )  # fmt: skip


def _between(covariance: Floats) -> Floats:
    """The variance of the difference of each board to the mean of its node; of a board alone, its variance."""
    n = len(covariance)
    difference = np.eye(n) - 1 / n if n > 1 else np.eye(1)
    return np.asarray(np.diag(difference @ covariance @ difference))
