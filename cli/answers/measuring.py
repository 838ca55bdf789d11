"""Measure and read the GPUs here: the functions of `whorl probe run` and `whorl collect`."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ...collectors import collect as collection
from ...dashboards.answers.reply import Reply, RowList, folder
from ...dashboards.document import Document
from ...dashboards.documents import probes as documents
from ...dashboards.words import many
from ...probes import measurement
from ...probes.settings import restore_left_over
from .job import JobReadings

if TYPE_CHECKING:
    from ...collectors.collect import Collected
    from ...probes.catalogue import Probe
    from ...store import Store


def measure(
    store: Store | str | Path, *names: str, knobs: str | Path | None = None, **options: Any
) -> Reply[measurement.MeasuredCampaign]:
    """Run probes, by name or those of a suite, on every GPU of this node or of a simulated fleet, into a store.

    `options` are those of `whorl probe run` (docs/cli.md, `MeasureOptions`): `suite`, `backend`, `gpus`, `campaign`,
    ...; times are in s, or as "5min"; `precision` in %, `lock_clock` in MHz, `power_limit` in W, `start_temperature` in
    degrees Celsius; `knobs` is a file with those of the kernel `stress`. `progress` is called with the number of probes
    that are done. The store is made if there is none. `frame` has a row for each run.

    Raises InputError if an option is not possible, DeviceError if no GPU can be used, StoreError if the store cannot be
    written. A GPU that fails is left out, and the report says so.
    """
    if knobs is not None:
        options["stress"] = partial(_stress_of, knobs)
    measured = measurement.measure(store, names, measurement.MeasureOptions(**options))
    report, plan = measured.report, measured.plan
    return Reply(
        measured,
        lambda measured: documents.probe_mapping(report, plan, backend=measured.backend),
        lambda _: documents.probe_document(report, plan, folder(store)),
        rows=RowList("runs"),
    )


def _stress_of(knobs: str | Path) -> Probe:
    from ...jobs.tuning_stress import setting_in, stress_probe

    return stress_probe(setting_in(knobs))


_HOOKS = {field.name for field in fields(collection.CollectHooks)}


def _collected(collected: Collected, store: str) -> Reply[Collected]:
    def document(collected: Collected) -> Document:
        counts = collected.counts
        stored = f"stored {many(counts.rows, 'row')} and {many(counts.events, 'event')}"
        return Document("", [f"{store}: {stored}; {counts.missed} missed"])

    return Reply(collected, lambda collected: collected.document(), document, rows=RowList(""))


@overload
def collect(store: Store | str | Path | None = None, *, for_job: Literal[True], **options: Any) -> JobReadings: ...


@overload
def collect(store: Store | str | Path, *, for_job: Literal[False] = False, **options: Any) -> Reply[Collected]: ...


def collect(
    store: Store | str | Path | None = None, *, for_job: bool = False, **options: Any
) -> JobReadings | Reply[Collected]:
    """Read GPUs into a store until `duration` is over, or Ctrl-C, SIGTERM or SIGHUP, as `whorl collect` does.

    `options` are those of the verb (docs/cli.md, `CollectOptions`): `interval`, `duration`, `backend`, ...; times are
    in s, or as "5min". Among them may be functions of `CollectHooks`: `tell` is called with a sentence about what is
    not as one may think, `begun` with the collector when it is ready, `look` after every tick. With `for_job` the reply
    is a `with` block: only the GPUs of the job in which this process runs are read, without `store` into a folder of
    the job's own.

    Raises InputError if there is no driver or GPU, or an option is not possible, and StoreError if the store cannot be
    written: acknowledged rows stay.
    """
    if not for_job:
        hooks = {name: options.pop(name) for name in tuple(options) if name in _HOOKS}
        hooks.setdefault("restore", restore_left_over)
        chosen = collection.CollectOptions(**options)
        collected = collection.collect(store, chosen, collection.CollectHooks(**hooks))
        return _collected(collected, collected.store if store is None else folder(store))
    return JobReadings(store if store is None or isinstance(store, str | Path) else store.root, **options)
