"""What each board's power sensor is wrong by: stated by the site, learnt from the power of its node, or as measured
boards have it.

    true energy = (1 + h) x read energy + p x time
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ... import __version__
from ...store.catalog import quoted
from ...store.instants import date_of_ns
from ...store.power_sensors import NORMAL_95, SENSOR_ERROR, ErrorSource, SensorError
from ...store.schema import CALIBRATIONS, arrow_schema
from ...store.vocabulary import CalibrationFinding, PowerOf
from ..by_number import by_number
from .meter import Meters
from .nodes import OF_HOST, WHOLE, NodeMeter, node_meters
from .readings import meters_of_many
from .series import Floats, Times
from .settings import EnergySettings, find_settings

if TYPE_CHECKING:
    from ...store import Store

_GPU = ("cluster", "gpu")
BOARDS: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "h": pl.Float64(),
    "p": pl.Float64(),  # W
    "hh": pl.Float64(),  # covariance of what is this board's alone
    "hp": pl.Float64(),
    "pp": pl.Float64(),
    "source": pl.String(),  # code of `ErrorSource`
}
"""The columns of `BoardErrors.boards`."""
SHARED: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "factor": pl.String(),  # a name: boards that have it are wrong together
    "h": pl.Float64(),  # how far h and p of this board move for one standard deviation of it
    "p": pl.Float64(),
}
"""The columns of `BoardErrors.shared`."""


@dataclass(frozen=True)
class BoardErrors:
    """The errors of the sensors of some boards. Covariances are such that 1.96 standard deviations are 95 %."""

    boards: pl.DataFrame
    """A row for each GPU: `BOARDS`."""
    shared: pl.DataFrame
    """What boards are wrong by together, a row for each GPU and factor: `SHARED`. Factors are independent."""
    others: SensorError = SENSOR_ERROR
    """That of a GPU that is not among `boards`."""

    @classmethod
    def alike(cls, error: SensorError) -> BoardErrors:
        """The same is known of all boards."""
        return cls(pl.DataFrame(schema=BOARDS), pl.DataFrame(schema=SHARED), error)

    @property
    def calibrated(self) -> pl.DataFrame:
        """The rows of boards that were calibrated: what `Meters.calibrated` adds to their energy."""
        return self.boards.filter(pl.col("source") == ErrorSource.CALIBRATED.value)

    @classmethod
    def of_models(cls, gpus: Iterable[tuple[str, str, str | None]]) -> BoardErrors:
        """Those of boards that nobody calibrated: cluster, GPU and model of each."""
        found = [(cluster, gpu, model or "", SensorError.of_model(model)) for cluster, gpu, model in gpus]
        boards = [(cluster, gpu, *_own(error)) for cluster, gpu, _, error in found]
        shared = [
            (cluster, gpu, f"{model} {at}", *pair)
            for cluster, gpu, model, error in found
            for at, pair in enumerate(_factors(error))
        ]
        return cls(_frame(boards, BOARDS), _frame(shared, SHARED))

    def added(self, read: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """What the errors come to over boards: a row for each group `by` with error_j, to be added to the energy for
        the most likely one, and board_j2, of which 1.96 roots are the half of its 95 % interval.

        `read`: columns `by`, cluster, gpu, sensed_j and sensed_s, a row for each group and GPU. The energy of boards
        that were calibrated is that of `Meters.calibrated`: it is the most likely one.
        """
        rest = read.select(_GPU).unique(maintain_order=True).join(self.boards, on=_GPU, how="anti", nulls_equal=True)
        own = dict(zip(list(BOARDS)[2:], _own(self.others), strict=True))
        boards = pl.concat([self.boards, rest.with_columns(pl.lit(own[name]).alias(name) for name in own)])
        of_rest = [
            rest.with_columns(pl.lit(f"of others {at}").alias("factor"), pl.lit(h).alias("h"), pl.lit(p).alias("p"))
            for at, (h, p) in enumerate(_factors(self.others))
        ]
        shared = pl.concat([self.shared, *of_rest])
        joules, seconds = pl.col("sensed_j"), pl.col("sensed_s")
        keys = [*by] if by else [pl.lit(0).alias("_all")]
        error = pl.col("h") * joules + pl.col("p") * seconds
        squares = pl.col("hh") * joules**2 + 2 * pl.col("hp") * joules * seconds + pl.col("pp") * seconds**2
        alone = read.join(boards, on=_GPU, nulls_equal=True, maintain_order="left").group_by(keys, maintain_order=True)
        likely = pl.when(pl.col("source") != ErrorSource.CALIBRATED.value).then(error).otherwise(0.0)
        total = alone.agg(likely.sum().alias("error_j"), squares.sum().alias("board_j2"))
        together = (
            read.join(shared, on=_GPU, nulls_equal=True, maintain_order="left")
            .group_by(*keys, "factor", maintain_order=True)
            .agg(error.sum())
            .group_by(*by or ["_all"], maintain_order=True)
            .agg((pl.col("h") ** 2).sum().alias("shared_j2"))
        )
        on = [*by] or ["_all"]
        both = total.join(together, on=on, how="left", nulls_equal=True, maintain_order="left")
        return both.select(*by, "error_j", pl.col("board_j2") + pl.col("shared_j2").fill_null(0.0))


POPULATION = BoardErrors.alike(SENSOR_ERROR)
"""Nothing is known of any board."""


def board_errors(store: Store, stated: SensorError = SENSOR_ERROR) -> BoardErrors:
    """The errors of the boards of a store: as they were calibrated, else as the settings state them, else as measured
    boards of the model, or of other models, have them. `stated`: `EnergySettings.sensor`."""
    return _with_prior(store, errors_of(store.sql("select * from calibrations_now").polars(), stated))


def _with_prior(store: Store, learnt: BoardErrors) -> BoardErrors:
    """With those of the boards that nobody calibrated, by their models, unless the settings state them."""
    if learnt.others.boards is None:
        return learnt
    gpus = store.sql("select cluster, gpu, model from gpus_now").polars()
    prior = BoardErrors.of_models(gpus.join(learnt.boards, on=_GPU, how="anti", nulls_equal=True).rows())
    return BoardErrors(pl.concat([learnt.boards, prior.boards]), pl.concat([learnt.shared, prior.shared]))


def errors_of(calibrations: pl.DataFrame, others: SensorError = SENSOR_ERROR) -> BoardErrors:
    """The errors of boards with rows of `calibrations`; `others`: of the boards without."""
    boards = calibrations.select(*list(BOARDS)[:-1], pl.lit(ErrorSource.CALIBRATED.value).alias("source"))
    shared = calibrations.select("cluster", "gpu", "shared").explode("shared").drop_nulls()
    return BoardErrors(boards, shared.unnest("shared").select(*SHARED), others)


def _own(error: SensorError) -> tuple[float, float, float, float, float, str]:
    """The columns of `BOARDS` of a board of which this is known."""
    (hh, hp), (_, pp) = error.covariance
    wider = (error.quantile / NORMAL_95) ** 2
    return *error.mean, wider * hh, wider * hp, wider * pp, error.source.value


def _factors(error: SensorError) -> list[tuple[float, float]]:
    """What boards of a model share as independent pairs of h and p: a Cholesky factor of its covariance."""
    (hh, hp), (_, pp) = error.shared
    if hh <= 0:
        return []
    wider, root = error.quantile / NORMAL_95, math.sqrt(hh)
    return [(wider * root, wider * hp / root), (0.0, wider * math.sqrt(max(pp - hp**2 / hh, 0.0)))]


def _frame(rows: Sequence[tuple[object, ...]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


# -- learnt from the power of nodes ---------------------------------------------------------------------------

_SUPPLY = {PowerOf.NODE_WALL: (0.94, 0.015), PowerOf.NODE_DC: (1.0, 0.0), PowerOf.NODE: (0.97, 0.02)}
"""Efficiency of the power supplies between the boards and the meter, and its standard deviation. 80 PLUS Platinum and
Titanium ask for 0.90 to 0.96 at the loads of servers."""
_FOLLOWS, _FOLLOWS_COUNTED = (0.02, 0.03), (0.01, 0.02)
"""What a host draws more for each W of its GPUs (fans, memory, network, CPUs), and its standard deviation; the second
where counters of its CPUs say their part."""
_COUNTED = (1.1, 0.1)
"""What a host draws for each W that the counter of its CPUs or memory says, whose voltage regulators are not in it."""
_DRIFT = 0.01  # standard deviation of the change of h from the middle of the time to its ends
_LAGS_S = (0.0, -2.0, -1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 45.0, 60.0)
_WIDTHS_S = (1.0, 5.0, 10.0, 30.0, 60.0)
"""Over what time a meter may average that does not say it."""
_TRIED = 1_000  # readings by which the lag is chosen
_BIN_S, _MOST_WINDOWS, _LEAST_WINDOWS, _FEW_WINDOWS = 10.0, 20_000, 10, 100
_LONG_NS = 60 * 10**9
_READ = 0.9  # of a window
_CHANGE, _CHANGE_W, _STEADY = 0.05, 5.0, 0.2
"""A GPU changes where its power does by more than this part of its range, and W; only steady windows count where this
part of all is steady."""
_BESIDE = 1.5  # windows
_TAIL = 4.0  # degrees of freedom of Student's t, of which residuals are taken to be
_ROUNDS = 12
_TOLD_APART = 0.5  # of the variance between the boards of a node
_NODES_AT_ONCE = 16


@dataclass(frozen=True)
class Windows:
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


def windows_of(meter: NodeMeter, counters: Sequence[NodeMeter], meters: Meters) -> Windows | None:
    """The windows in which a node, the parts of its host that have counters, and all its GPUs (`meters`) were read, of
    10 s or more; None of fewer than ten.

    The lag of the meter, and the time that it averages over where it does not say it, are those at which the changes of
    its power follow the changes of the GPUs' power best.
    """
    some = np.isfinite(meter.watts)
    ts, node_w, said_s = meter.ts_ns[some], meter.watts[some], meter.window_s[some]
    if len(ts) < _LEAST_WINDOWS:
        return None
    widths = (None,) if np.isfinite(said_s).mean() >= _READ else _WIDTHS_S

    def read(width: float | None, lag_s: float, many: int) -> tuple[Floats, Times, Times]:
        ended = ts[:many] - round(lag_s * 1e9)
        began = ended - (1e9 * (said_s[:many] if width is None else np.full(len(ended), width))).astype(np.int64)
        return _mean_w(meters, began, ended), began, ended

    def agreement(width: float | None, lag_s: float) -> float:
        changes = np.diff(np.stack([read(width, lag_s, _TRIED)[0].sum(axis=0), node_w[:_TRIED]]))
        changes = changes[:, np.isfinite(changes).all(axis=0)]
        if changes.shape[1] < _LEAST_WINDOWS or (np.ptp(changes, axis=1) == 0).any():
            return -1.0
        return float(np.corrcoef(changes)[0, 1])

    width, lag_s = max(product(widths, _LAGS_S), key=lambda choice: agreement(*choice))
    gpu_w, began, ended = read(width, lag_s, len(ts))
    host_w = [np.where((seconds >= _READ * (ended - began) / 1e9) & (seconds > 0), joules / seconds.clip(1e-9), np.nan)
              for joules, seconds in (counter.over(began, ended) for counter in counters)]  # fmt: skip
    rows = np.stack([ts.astype(np.float64), node_w, *gpu_w, *host_w])
    good = np.isfinite(rows).all(axis=0)
    rows, ts = rows[:, good], ts[good]
    if not len(ts):
        return None
    size_ns = round(1e9 * max(_BIN_S, (ts[-1] - ts[0]) / 1e9 / _MOST_WINDOWS))
    firsts = np.flatnonzero(np.diff(ts // size_ns, prepend=-1))
    if len(firsts) < _LEAST_WINDOWS:
        return None
    rows = np.add.reduceat(rows, firsts, axis=1) / np.diff(firsts, append=len(ts))
    n = len(meters)
    steady = _steady(rows[2 : n + 2])
    if steady.mean() >= _STEADY:  # windows side by side make one, of up to a minute: readings have noise, too
        beside = np.cumsum(np.diff(np.flatnonzero(steady), prepend=-9) > 1)
        place = np.arange(len(beside)) - np.searchsorted(beside, beside)
        firsts = np.flatnonzero(np.diff(beside * len(steady) + place * size_ns // _LONG_NS, prepend=-1))
        rows = np.add.reduceat(rows[:, steady], firsts, axis=1) / np.diff(firsts, append=len(beside))
    return Windows(meter, meters.gpus, rows[0].astype(np.int64), rows[1], rows[2 : n + 2], rows[n + 2 :], lag_s)


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
    read = (energies.measured_s >= _READ * lasted) & (energies.reason == "")
    return np.where(read, energies.energy_j / lasted, np.nan).reshape(n, k)


@dataclass(frozen=True)
class _Prior:
    """What is known of the n boards of a node before: of h the mean, the own variance and how it moves with f factors
    that boards share; p follows h along a line, and has a variance of its own around it."""

    h: Floats
    variance: Floats
    loads: Floats
    """(n, f)"""
    p: Floats
    slope: Floats
    """p moves by it when h moves by 1."""
    around: Floats
    """The variance of p around that line, of the board's own, and what its model shares of it (standard deviation)."""
    shared_p: Floats


@dataclass(frozen=True)
class _Fit:
    """What the windows of a node say of h of its boards, given the f + 1 factors u that boards of the cluster share:
    those of models, and what hosts and power supplies add for each W. They are standard normal before."""

    windows: Windows
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


def _fit(windows: Windows, prior: _Prior) -> _Fit:
    """Bayesian linear regression of the power of a node on that of its boards,

        node x efficiency - sum of read = sum of h_i read_i + s x sum of read + c x counted + base + noise

    where s is what host, power supply and meter add for each W; h may drift along a line. Offsets of boards cannot be
    told from the base. The noise is autoregressive of first order and has the tails of Student's t; its variance is
    raised by what correlation is left.
    """
    gpu_w, n, counters = windows.gpu_w, len(windows.gpu_w), len(windows.host_w)
    efficiency, supply_sd = _SUPPLY[windows.meter.covers]
    follows, follows_sd = _FOLLOWS_COUNTED if counters else _FOLLOWS
    when = np.interp(windows.ended_ns, windows.ended_ns[[0, -1]], (-1.0, 1.0))
    total = gpu_w.sum(axis=0)
    x = np.stack([*gpu_w, *(when * gpu_w), *windows.host_w, total, np.ones(len(total))]).T
    y = windows.node_w * efficiency - total
    mean = np.concatenate([prior.h, np.zeros(n), [_COUNTED[0]] * counters, [follows, 0.0]])
    spread = np.concatenate(
        [np.sqrt(prior.variance), [_DRIFT] * n, [_COUNTED[1]] * counters, [windows.meter.gain_sd, 1e4]]
    )
    before = np.diag(spread**-2)
    factors = np.zeros((len(mean), prior.loads.shape[1] + 1))
    factors[:n, :-1] = prior.loads
    factors[-2, -1] = math.hypot(follows_sd, supply_sd)

    steps = np.diff(windows.ended_ns) / np.median(np.diff(windows.ended_ns))
    rows, weights, rho = np.column_stack([x, y]), np.ones(len(y)), 0.0
    scale = float(np.var(y)) + 1e-6
    for _ in range(_ROUNDS):
        like = np.append(0.0, rho**steps)[:, None]  # the correlation with the window before
        white = (rows - like * np.roll(rows, 1, axis=0)) / np.sqrt(1 - like**2)
        wx, wy = white[:, :-1], white[:, -1]
        known = (wx.T * weights) @ wx / scale
        seen = wx.T @ (weights * wy) / scale
        after = np.linalg.inv(known + before)
        theta = after @ (seen + before @ mean)
        noise, residual = wy - wx @ theta, y - x @ theta
        scale = max(float((weights * noise**2).mean()), 1e-2)
        weights = (_TAIL + 1) / (_TAIL + noise**2 / scale)
        residual = np.clip(
            residual - np.median(residual), *(np.array([-5, 5]) * (1.5 * np.median(abs(residual)) + 0.1))
        )
        pairs = (residual[1:] * residual[:-1])[steps < _BESIDE]
        rho = float(np.clip(pairs.mean() / (residual**2).mean(), 0.0, 0.99)) if len(pairs) else 0.0
    noise = noise * np.sqrt(weights)
    left = [float((noise[lag:] * noise[:-lag]).mean() / (noise**2).mean()) for lag in range(1, 11)]
    raised = max(1.0, 1 + 2 * sum(left))
    known, seen = known / raised, seen / raised
    after = np.linalg.inv(known + before)
    rest = np.eye(len(mean)) - known @ after
    of_meter = after[:n, -2] / math.sqrt(after[-2, -2])
    drift = np.stack([theta[n : 2 * n], np.sqrt(np.diag(after)[n : 2 * n])])
    return _Fit(
        windows, prior, (after @ (seen + before @ mean))[:n], (after @ before @ factors)[:n], after[:n, :n], of_meter,
        drift, factors.T @ rest @ known @ factors, factors.T @ rest @ (seen - known @ mean),
    )  # fmt: skip


def windows_of_nodes(
    store: Store,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Windows]:
    """The windows of each node of which some meter reads the whole, in order of cluster and node. Raises StoreError."""
    named = (
        store.sql("select cluster, node, gpu from gpus_now where parent is null and node is not null").polars().rows()
    )
    gpus: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for of, node, gpu in named:
        gpus.setdefault((of, node), []).append((of, gpu))
    by_node: dict[tuple[str, str], list[NodeMeter]] = {}
    for meter in node_meters(store, cluster=cluster, since=since, until=until):
        by_node.setdefault((meter.cluster, meter.node), []).append(meter)
    nodes = [key for key, found in by_node.items() if key in gpus and found[0].covers in WHOLE]
    for at in range(0, len(nodes), _NODES_AT_ONCE):
        if progress is not None:
            progress(f"reading nodes: {at:,} of {len(nodes):,}")
        some = nodes[at : at + _NODES_AT_ONCE]
        first = min(int(by_node[key][0].ts_ns[0]) for key in some) - 120 * 10**9
        last = max(int(by_node[key][0].ts_ns[-1]) for key in some) + 120 * 10**9
        read = list(
            meters_of_many(store, gpus=[gpu for key in some for gpu in gpus[key]], since_ns=first, until_ns=last)
        )
        if not read:
            continue
        meters = reduce(Meters.beside, read)
        place = {gpu: number for number, gpu in enumerate(meters.gpus)}
        for key in some:
            of_node = np.array([place[gpu] for gpu in gpus[key] if gpu in place], np.int64)
            counters = [next((one for one in by_node[key] if one.covers == part), None) for part in OF_HOST]
            if len(of_node):
                found = windows_of(by_node[key][0], [one for one in counters if one], meters.only(of_node))
                if found is not None:
                    yield found


SCHEMA = "whorl.energy.calibrate/1"


@dataclass(frozen=True)
class Calibration:
    """What is known of the sensors of a store's boards, after a calibration."""

    boards: pl.DataFrame
    """A row for each GPU: cluster, gpu, name, node, model; gain_pct (to be added to the energy that it reads) and
    offset_w (to its power), each with the ends of its 95 % interval (_low_, _high_); source, a code of `ErrorSource`;
    and where it was calibrated, windows, since, until, meter (a code of `PowerMeter`), learnt and finding, as in the
    table `calibrations`."""
    nodes: int
    """How many nodes were used."""
    stored: bool


def calibrate(
    store: Store | str | Path,
    *,
    cluster: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    settings: EnergySettings | str | Path | None = None,
    dry_run: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Learn from the power of nodes what the sensors of their boards are wrong by, and store it, but with `dry_run`.

    Energy is then that of calibrated boards. `since` and `until` are UTC without zone. Raises InputError for settings
    that cannot be used, StoreError where the store cannot be read, or written.
    """
    from ...store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    stated = find_settings(opened.root, settings).sensor
    by_cluster: dict[str, list[Windows]] = {}
    for one in windows_of_nodes(opened, cluster=cluster, since=since, until=until, progress=progress):
        by_cluster.setdefault(one.meter.cluster, []).append(one)
    named = opened.sql("select cluster, gpu, model from gpus_now").polars()
    models = {(of, gpu): model for of, gpu, model in named.rows()}
    parts = [calibrated_boards(some, models, stated) for some in by_cluster.values()]
    rows = pl.concat([pl.DataFrame(schema=_ROW), *parts])
    stored = not dry_run and bool(rows.height)
    if stored:
        at = datetime.now(UTC).replace(tzinfo=None)
        with_time = rows.with_columns(pl.lit(at).alias("made_at"), pl.lit(__version__).alias("version"))
        schema = arrow_schema(CALIBRATIONS.name)
        table = with_time.select(CALIBRATIONS.names).to_arrow().cast(schema.remove_metadata())
        opened.append({CALIBRATIONS.name: table}, f"calibration-{at:%Y%m%dT%H%M%S%f}")
    return Calibration(_boards(opened, rows, stated, cluster), sum(map(len, by_cluster.values())), stored)


def _boards(store: Store, rows: pl.DataFrame, stated: SensorError, cluster: str | None) -> pl.DataFrame:
    """`Calibration.boards`: the `rows` just made, else what the store has of a board."""
    where = "" if cluster is None else f" where cluster = {quoted(cluster)}"
    named = store.sql(f"select cluster, gpu, name, node, model from gpus_now{where}").polars()
    stored = store.sql("select * from calibrations_now").polars().select(*_ROW).cast(_ROW)  # type: ignore[arg-type]
    learnt = pl.concat([rows, stored.join(rows, on=_GPU, how="anti", nulls_equal=True)])
    errors = _with_prior(store, errors_of(learnt, stated))
    # Of a board alone, the error of 1 J and of 1 s are those of h and of p.
    ends = []
    for name, joules, factor in (("gain_pct", 1.0, 100.0), ("offset_w", 0.0, 1.0)):
        read = named.select(*_GPU, sensed_j=pl.lit(joules), sensed_s=pl.lit(1 - joules))
        of_board = errors.boards.select(*_GPU, pl.col("h" if joules else "p").alias("middle"))
        half = NORMAL_95 * pl.col("board_j2").sqrt()
        found = errors.added(read, _GPU).join(of_board, on=_GPU, how="left", nulls_equal=True)
        middle = pl.coalesce("middle", "error_j")
        kind, unit = name.split("_")
        ends.append(found.select(
            *_GPU, (factor * middle).alias(name), (factor * (middle - half)).alias(f"{kind}_low_{unit}"),
            (factor * (middle + half)).alias(f"{kind}_high_{unit}"),
        ))  # fmt: skip
    source = errors.boards.select(*_GPU, "source")
    of_learnt = learnt.rename({"source": "meter"}).select(
        *_GPU, "windows", "since", "until", "meter", "learnt", "finding"
    )
    found = named
    for part in (*ends, source, of_learnt):
        found = found.join(part, on=_GPU, how="left", nulls_equal=True, maintain_order="left")
    return found.with_columns(pl.col("source").fill_null(stated.source.value)).sort(
        *by_number("cluster", "node", "name"), "gpu", nulls_last=True
    )


def calibrated_boards(
    windows: Sequence[Windows], models: Mapping[tuple[str, str], str | None], stated: SensorError = SENSOR_ERROR
) -> pl.DataFrame:
    """What the windows of the nodes of one cluster say of the sensors of their boards: rows of `calibrations`, but for
    `made_at` and `version`. `stated`: `EnergySettings.sensor`; `models`: by cluster and GPU.

    Nodes are fitted one by one, given what boards and hosts of the cluster share; that is then known from all of them.
    """
    names = sorted({models.get(gpu) or "" for one in windows for gpu in one.gpus})
    fits = [_fit(one, _prior(one, names, models, stated)) for one in windows]
    covariance = np.linalg.inv(np.eye(len(names) + 1) + sum(fit.precision for fit in fits))
    factors = covariance @ sum(fit.weighted for fit in fits)
    root = np.linalg.cholesky(covariance)
    rows = [row for fit in fits for row in _rows(fit, factors, root, names, models)]

    return pl.DataFrame(rows, schema=_ROW, orient="row")


_SHARED_OF = pl.List(pl.Struct({"factor": pl.String(), "h": pl.Float64(), "p": pl.Float64()}))
_ROW: dict[str, pl.DataType] = {
    "cluster": pl.String(), "gpu": pl.String(), "node": pl.String(), "model": pl.String(), "since": pl.Datetime("us"),
    "until": pl.Datetime("us"), "source": pl.String(), "windows": pl.Int64(), "h": pl.Float64(), "p": pl.Float64(),
    "hh": pl.Float64(), "hp": pl.Float64(), "pp": pl.Float64(), "shared": _SHARED_OF, "learnt": pl.Float64(),
    "finding": pl.String(),
}  # fmt: skip


def _prior(
    windows: Windows, names: Sequence[str], models: Mapping[tuple[str, str], str | None], stated: SensorError
) -> _Prior:
    """The prior of the boards of a node; the factors are those of the models `names`."""
    columns = []
    loads = np.zeros((len(windows.gpus), len(names)))
    for board, gpu in enumerate(windows.gpus):
        error = stated if stated.boards is None else SensorError.of_model(models.get(gpu))
        h, p, hh, hp, pp, _ = _own(error)
        (load, _), (_, shared_p) = _factors(error) or [(0.0, 0.0), (0.0, 0.0)]
        loads[board, names.index(models.get(gpu) or "")] = load
        columns.append((h, hh, p, hp / hh if hh else 0.0, pp - hp**2 / hh if hh else pp, shared_p))
    h, variance, p, slope, around, shared_p = np.array(columns).T
    return _Prior(h, variance, loads, p, slope, around, shared_p)


def _rows(
    fit: _Fit, factors: Floats, root: Floats, names: Sequence[str], models: Mapping[tuple[str, str], str | None]
) -> Iterator[tuple[object, ...]]:
    """The rows of `calibrate` of the boards of one node."""
    windows, prior, n = fit.windows, fit.prior, len(fit.h)
    h = fit.h + fit.loads @ factors
    p = prior.p + prior.slope * (h - prior.h)
    together = fit.loads @ root
    change, unsure = fit.drift
    hh = np.diag(fit.covariance) - fit.of_meter**2 + change**2 + unsure**2
    beside = np.eye(n) - 1 / n  # of each board, how it differs from the mean of the node
    apart, at_first = (
        np.diag(beside @ of @ beside) if n > 1 else np.diag(of) for of in (fit.covariance, np.diag(prior.variance))
    )
    learnt = 1 - apart / np.where(at_first > 0, at_first, 1.0)
    steady = windows.gpu_w.std(axis=1) < 0.03 * windows.gpu_w.mean(axis=1)
    for board, gpu in enumerate(windows.gpus):
        finding = (
            CalibrationFinding.FEW if len(windows.node_w) < _FEW_WINDOWS
            else CalibrationFinding.STEADY if steady[board]
            else CalibrationFinding.TOGETHER if learnt[board] < _TOLD_APART
            else CalibrationFinding.DRIFTS if abs(change[board]) > max(2.5 * unsure[board], 0.5 * _DRIFT)
            else CalibrationFinding.OK
        )  # fmt: skip
        slope, model = float(prior.slope[board]), models.get(gpu)
        shared = [
            *(
                (f"{gpu[0]} {factor}", float(load))
                for factor, load in zip([*names, "hosts"], together[board], strict=True)
            ),
            (f"{gpu[0]} {windows.meter.node} meter", float(fit.of_meter[board])),
        ]
        yield (
            *gpu, windows.meter.node, model, _time(windows.ended_ns[0]), _time(windows.ended_ns[-1]),
            windows.meter.source.value, len(windows.node_w), float(h[board]), float(p[board]), float(hh[board]),
            slope * float(hh[board]), slope**2 * float(hh[board]) + float(prior.around[board]),
            [{"factor": factor, "h": load, "p": slope * load} for factor, load in shared]
            + [{"factor": f"{gpu[0]} {model} offset", "h": 0.0, "p": float(prior.shared_p[board])}],
            float(learnt[board]), finding.value,
        )  # fmt: skip


def _time(at_ns: np.int64) -> datetime:
    return date_of_ns(int(at_ns))
