"""All that a store says of one job: its energy, its GPUs and their place in the fleet, what they cost, and the options.

The figures are those of `whorl energy --job` and `whorl energy quote --job`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ...store.instants import nanoseconds
from ...store.power_sensors import SensorError
from ...store.views import OF_ALL_RUNS
from ..engines import HERE, Engine
from .answers import EnergyAnswer, energy, offline
from .books import ALL_ENERGY, EnergyQuestion
from .excess import verdicts
from .options import Ground
from .quote import Quoted, quote_job

if TYPE_CHECKING:
    from ...store import Store


NO_VERDICT = "none"


@dataclass(frozen=True)
class OneJob:
    """A job. All of its `booked` are without pieces."""

    answer: EnergyAnswer
    elsewhere: Quoted | None
    why_not: str | None
    """Why nothing is known of `elsewhere`, in a sentence."""
    gpus: pl.DataFrame
    """The rows of `answer.gpus`, with the columns of `excess.job_places`, and `verdicts` (kinds of findings; "none"
    where the GPU was judged, NULL where nobody judged it)."""

    @property
    def ends_ns(self) -> tuple[int, int]:
        """From when to when it was metered, ns since 1970."""
        return nanoseconds(self.answer.booked.since), nanoseconds(self.answer.booked.until)


def job_offline(
    store: Store,
    job: str,
    cluster: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    grounds: Callable[[str, SensorError], Ground] | None = None,
) -> OneJob:
    """As `one_job`, and asks nothing of the network."""
    return one_job(store, job, EnergyQuestion(cluster, settings=offline(store)), progress=progress, grounds=grounds)


def one_job(
    store: Store,
    job: str,
    question: EnergyQuestion = ALL_ENERGY,
    *,
    progress: Callable[[str], None] | None = None,
    grounds: Callable[[str, SensorError], Ground] | None = None,
    engine: Engine = HERE,
) -> OneJob:
    """What is known of a job, or of all tasks of an array. `grounds`: as `quote` takes it; `engine`: where the parts of
    its energy are made.

    Raises InputError as `answers.energy`.
    """
    answer = energy(store, question=question, job=job, progress=progress, engine=engine)
    elsewhere, why_not = None, None
    try:
        elsewhere = quote_job(store, job, answer, grounds=grounds)
    except InputError as error:
        why_not = str(error)
    small = answer.booked.without_pieces
    gpus = pl.DataFrame() if answer.gpus is None else answer.gpus
    if elsewhere is not None:
        gpus = gpus.join(elsewhere.places, on=["cluster", "gpu"], how="left", nulls_equal=True, maintain_order="left")
    gpus = gpus.join(verdicts(store), on=["cluster", "gpu"], how="left", nulls_equal=True, maintain_order="left")
    clusters = store.sql(f"SELECT DISTINCT cluster FROM judgements WHERE {OF_ALL_RUNS}").polars()["cluster"]
    judged = clusters.cast(pl.String).to_list()
    calm = pl.col("gpu").is_not_null() & pl.col("verdicts").is_null() & pl.col("cluster").is_in(judged)
    gpus = gpus.with_columns(pl.when(calm).then(pl.lit(NO_VERDICT)).otherwise("verdicts").alias("verdicts"))
    return OneJob(replace(answer, booked=small), elsewhere, why_not, gpus)
