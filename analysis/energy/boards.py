"""What is known of the error of each board's power sensor: as calibrated, as the site states it, or as measured boards
have it.

    true energy = (1 + h) x read energy + p x time
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ...store.power_sensors import NORMAL_95, SENSOR_ERROR, ErrorSource, SensorError

if TYPE_CHECKING:
    from ...store import Store

GPU = ("cluster", "gpu")
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
    usual: SensorError = SENSOR_ERROR
    """That of a GPU that is not among `boards`."""

    @classmethod
    def alike(cls, error: SensorError) -> BoardErrors:
        """The same is known of all boards."""
        return cls(pl.DataFrame(schema=BOARDS), pl.DataFrame(schema=SHARED), error)

    @classmethod
    def of_models(cls, gpus: Iterable[tuple[str, str, str | None]]) -> BoardErrors:
        """Those of boards that nobody calibrated: cluster, GPU and model of each."""
        rows = list(gpus)
        errors = {model: SensorError.of_model(model) for model in {model for _, _, model in rows}}
        columns = {model: columns_of(error) for model, error in errors.items()}
        pairs = {model: list(enumerate(shared_pairs(error))) for model, error in errors.items()}
        boards = [(cluster, gpu, *columns[model]) for cluster, gpu, model in rows]
        shared = [
            (cluster, gpu, f"{model or ''} {number}", *pair)
            for cluster, gpu, model in rows
            for number, pair in pairs[model]
        ]
        return cls(pl.DataFrame(boards, BOARDS, orient="row"), pl.DataFrame(shared, SHARED, orient="row"))

    @classmethod
    def of_rows(cls, calibrations: pl.DataFrame, usual: SensorError = SENSOR_ERROR) -> BoardErrors:
        """Those of boards with rows of the table `calibrations`; `usual`: of the boards without."""
        boards = calibrations.select(*list(BOARDS)[:-1], pl.lit(ErrorSource.CALIBRATED.value).alias("source"))
        shared = calibrations.select(*GPU, "shared").explode("shared").drop_nulls()
        return cls(boards, shared.unnest("shared").select(*SHARED), usual)

    def with_models(self, store: Store) -> BoardErrors:
        """With those of the boards of a store that are not among them, by their models, unless `usual` is stated."""
        if self.usual.boards is None:
            return self
        gpus = store.sql("select cluster, gpu, model from gpus_now").polars()
        prior = BoardErrors.of_models(gpus.join(self.boards, on=GPU, how="anti", nulls_equal=True).rows())
        return BoardErrors(pl.concat([self.boards, prior.boards]), pl.concat([self.shared, prior.shared]))

    @property
    def calibrated(self) -> pl.DataFrame:
        """The rows of boards that were calibrated: what `Meters.calibrated` adds to their energy."""
        return self.boards.filter(pl.col("source") == ErrorSource.CALIBRATED.value)

    def half_widths(self, gpus: pl.DataFrame) -> pl.DataFrame:
        """The halves of the 95 % intervals of h and p of each board alone: cluster, gpu, gain (a share), offset_w."""
        widths = gpus.select(*GPU)
        for name, joules in (("gain", 1.0), ("offset_w", 0.0)):  # the error of 1 J is that of h, and of 1 s that of p
            read = gpus.select(*GPU, sensed_j=pl.lit(joules), sensed_s=pl.lit(1 - joules))
            half = self.added(read, GPU).select(*GPU, (NORMAL_95 * pl.col("board_j2").sqrt()).alias(name))
            widths = widths.join(half, on=GPU, how="left", nulls_equal=True, maintain_order="left")
        return widths

    def added(self, read: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """What the errors come to over boards: a row for each group `by` with error_j, to be added to the energy for
        the most likely one, and board_j2, of which 1.96 roots are the half of its 95 % interval.

        `read`: columns `by`, cluster, gpu, sensed_j and sensed_s, a row for each group and GPU. The energy of boards
        that were calibrated is that of `Meters.calibrated`: it is the most likely one.
        """
        absent = read.select(GPU).unique(maintain_order=True).join(self.boards, on=GPU, how="anti", nulls_equal=True)
        usual = dict(zip(list(BOARDS)[2:], columns_of(self.usual), strict=True))
        boards = pl.concat([self.boards, absent.with_columns(pl.lit(usual[name]).alias(name) for name in usual)])
        of_absent = [
            absent.with_columns(pl.lit(f"usual {number}").alias("factor"), pl.lit(h).alias("h"), pl.lit(p).alias("p"))
            for number, (h, p) in enumerate(shared_pairs(self.usual))
        ]
        shared = pl.concat([self.shared, *of_absent]).with_columns(pl.col("factor").rank("dense"))
        joules, seconds = pl.col("sensed_j"), pl.col("sensed_s")
        error = pl.col("h") * joules + pl.col("p") * seconds
        likely = pl.when(pl.col("source") != ErrorSource.CALIBRATED.value).then(error).otherwise(0.0)
        squares = pl.col("hh") * joules**2 + 2 * pl.col("hp") * joules * seconds + pl.col("pp") * seconds**2
        rows, keys = (read, list(by)) if by else (read.with_columns(pl.lit(0).alias("_all")), ["_all"])
        sums = rows.join(boards, on=GPU, nulls_equal=True, maintain_order="left").group_by(keys, maintain_order=True)
        factors = rows.join(shared, on=GPU, nulls_equal=True, maintain_order="left")
        factors = factors.group_by(*keys, "factor", maintain_order=True).agg(error.sum().alias("error_j"))
        of_factors = factors.group_by(keys, maintain_order=True).agg((pl.col("error_j") ** 2).sum().alias("shared_j2"))
        total = sums.agg(likely.sum().alias("error_j"), squares.sum().alias("board_j2"))
        total = total.join(of_factors, on=keys, how="left", nulls_equal=True, maintain_order="left")
        return total.select(*by, "error_j", pl.col("board_j2") + pl.col("shared_j2").fill_null(0.0))


POPULATION = BoardErrors.alike(SENSOR_ERROR)
"""Nothing is known of any board."""


def board_errors(store: Store, stated: SensorError = SENSOR_ERROR) -> BoardErrors:
    """The errors of the boards of a store: as they were calibrated, else as the settings state them, else as measured
    boards of the model, or of other models, have them. `stated`: `EnergySettings.sensor`. Raises StoreError."""
    calibrations = store.sql("select * from calibrations_now").polars()
    return BoardErrors.of_rows(calibrations, stated).with_models(store)


def columns_of(error: SensorError) -> tuple[float, float, float, float, float, str]:
    """h, p, hh, hp, pp and source, as in `BOARDS`, of a board of which this is known."""
    (hh, hp), (_, pp) = error.covariance
    wider = (error.quantile / NORMAL_95) ** 2
    return *error.mean, wider * hh, wider * hp, wider * pp, error.source.value


def shared_pairs(error: SensorError) -> list[tuple[float, float]]:
    """What boards of a model share as independent pairs of h and p: a Cholesky factor of its covariance."""
    (hh, hp), (_, pp) = error.shared
    if hh <= 0:
        return []
    wider, root = error.quantile / NORMAL_95, math.sqrt(hh)
    return [(wider * root, wider * hp / root), (0.0, wider * math.sqrt(max(pp - hp**2 / hh, 0.0)))]
