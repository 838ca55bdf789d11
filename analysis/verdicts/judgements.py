"""The judgements that a store holds: each judging of a cluster adds its rows, and the newest can be read back."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from ... import __version__
from ...errors import StoreError
from ...store.schema import DAY_LEVELS, LEVELS, VERDICTS, arrow_rows, arrow_schema
from ...store.views import OF_ALL_RUNS
from ..engines import HERE, Coverage, Engine
from ..runs.probing import FACT_GPU, IS_FACT, campaigns, clusters_with_facts, clusters_with_timelines
from ..runs.windows import Progress
from .verdict import (
    Action,
    Change,
    ComparedWith,
    Gap,
    Judgement,
    Kind,
    Level,
    Measured,
    NotJudged,
    Smallest,
    State,
    Verdict,
    action_of,
)
from .verdict import Cause as Part

if TYPE_CHECKING:
    import pyarrow as pa

    from ...store import Store


@dataclass(frozen=True)
class Concluded:
    """What was concluded about the clusters of a store."""

    judgements: tuple[Judgement, ...]
    notes: tuple[str, ...] = ()
    """Sentences about the judging itself, as that nothing could be stored."""

    @property
    def coverage(self) -> Coverage:
        """Of the telemetry that was read for all judgements."""
        return functools.reduce(operator.add, (judgement.coverage for judgement in self.judgements), Coverage())


def conclude(
    store: Store, *, cluster: str | None = None, campaign: str | None = None, since: datetime | None = None,
    engine: Engine = HERE, progress: Progress | None = None,
) -> Concluded:  # fmt: skip
    """Judge a cluster, or every cluster that has runs, and store what was found. InputError as `judge` raises it.

    What telemetry tells is made in parts, where the `engine` says; the judge is this process. A store that this user
    may not write to is read; a note says that nothing was stored.
    """
    from .judge import judge

    judgements = []
    for name in _clusters(store, cluster, campaign, engine):
        facts = None if name is None else facts_of(store, name)  # counted first: what comes meanwhile is newer
        judgement = judge(store, cluster=name, campaign=campaign, since=since, engine=engine, progress=progress)
        judgements.append(replace(judgement, facts=facts))
    at = datetime.now(UTC).replace(tzinfo=None)
    return Concluded(tuple(judgements), record(store, judgements, at, campaign=campaign, since=since))


def last_judgement(store: Store, cluster: str) -> StoredJudgement | None:
    """The newest judgement of a cluster of those about every run, with the levels of its GPUs.

    It is the stored one. Where none is stored, or not all of it can be read, the cluster is judged, and that is stored
    if this user may write. None where there is nothing to judge.
    """
    newest_judgement = next(iter(stored(store, cluster)), None)
    if newest_judgement is not None and newest_judgement.is_complete(store):
        return newest_judgement
    if cluster not in clusters(store):
        return None
    new_judgement = made_judgement(store, cluster)
    record(store, [new_judgement.judgement], datetime.now(UTC).replace(tzinfo=None), again=newest_judgement is not None)
    return new_judgement


def made_judgement(store: Store, cluster: str) -> StoredJudgement:
    """The judgement of all runs of a cluster, made now and not stored. InputError as of `judge`."""
    from .judge import judge  # only here, as to answer from what is stored needs no statistics

    facts = facts_of(store, cluster)
    judgement = replace(judge(store, cluster=cluster), facts=facts)
    keys = _keys(store)
    covered = tuple(frozenset(keys.get((cluster, name), name) for name in row.gpus) for row in judgement.rows)
    return StoredJudgement(judgement, None, tuple(verdict.name for verdict in judgement.watch), covered, "", None)


def clusters(store: Store, *, engine: Engine = HERE) -> list[str]:
    """The clusters of which something can be judged: from runs, from events that need none, or from timelines."""
    with_runs = set(campaigns(store)["cluster"])
    return sorted({*with_runs, *clusters_with_facts(store, engine=engine), *clusters_with_timelines(store)})


def facts_of(store: Store, cluster: str) -> int:
    """How many events of a cluster tell what needs no run, and timelines of training jobs."""
    of_cluster = pl.col("cluster") == cluster
    events = store.scan("events").filter(of_cluster & IS_FACT & FACT_GPU.is_not_null()).select(pl.len())
    jobs = store.scan("operations").filter(of_cluster).select(pl.col("job").n_unique())
    return int(store.collect(events).item()) + int(store.collect(jobs).item())


def _clusters(store: Store, cluster: str | None, campaign: str | None, engine: Engine) -> Sequence[str | None]:
    """The clusters to judge; None for `judge` to say what is wrong."""
    if cluster is not None:
        return [cluster]
    if campaign is None:
        return clusters(store, engine=engine) or [None]
    rows = campaigns(store).filter(pl.col("campaign") == campaign)
    return sorted(set(rows["cluster"])) or [None]


def record(
    store: Store,
    judgements: Sequence[Judgement],
    at: datetime,
    *,
    campaign: str | None = None,
    since: datetime | None = None,
    again: bool = False,
) -> tuple[str, ...]:
    """Store judgements, each unless the newest one of its kind says the same; with `again` then, too.

    Those of all runs are stored with the levels of all GPUs. Returns notes for people.
    """
    if not store.writable():
        return (f"the findings are not stored: this user may only read {store.root}",)
    last = _last(store)
    kind = campaign, since is not None
    of_all_runs = campaign is None and since is None
    contents = [(judgement, _content(judgement)) for judgement in judgements]
    new_judgements = [
        (judgement, content)
        for judgement, content in contents
        if again or last.get((judgement.cluster, *kind), ("",))[0] != content
    ]
    if not new_judgements:
        return ()
    keys = _keys(store)
    rows: dict[str, list[dict[str, Any]]] = {"judgements": [], "verdicts": []}
    levels: dict[str, list[pl.DataFrame]] = {LEVELS.name: [], DAY_LEVELS.name: []}
    for judgement, content in new_judgements:
        cluster = judgement.cluster
        judged_at = at
        if (cluster, *kind) in last:  # by a clock that was ahead, the last one would stay the newest for long
            judged_at = max(at, last[cluster, *kind][1] + timedelta(microseconds=1))
        identity = hashlib.sha256(f"{cluster} {campaign} {judged_at} {content}".encode()).hexdigest()[:16]
        common = {"cluster": cluster, "judged_at": judged_at, "version": __version__, "judgement": identity}
        peers = judgement.peers if of_all_runs else None
        if peers is not None:
            beside = [pl.lit(common[column]).alias(column) for column in ("judgement", "cluster", "judged_at")]
            levels[LEVELS.name].append(peers.levels.with_columns(beside))
            levels[DAY_LEVELS.name].append(peers.days.with_columns(beside))
        rows["judgements"].append(
            common
            | _judgement_row(judgement, keys)
            | {"campaign": campaign, "since": since, "content": content}
            | {"levels": None if not of_all_runs else 0 if peers is None else peers.levels.height}
        )
        rows["verdicts"] += [common | _row(verdict, place, keys) for place, verdict in enumerate(judgement.rows)]
    tables = {
        name: arrow_rows(name, {key: [row[key] for row in listed] for key in listed[0]})
        for name, listed in rows.items()
        if listed
    }
    tables |= {name: _arrow(name, frames) for name, frames in levels.items() if frames}
    try:
        store.append(tables, f"judgement-{rows['judgements'][0]['judgement']}")
    except StoreError as error:
        return (f"the findings are not stored: {error}",)
    return ()


def _judgement_row(judgement: Judgement, keys: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    return {
        "gpus": judgement.gpus,
        "looks": judgement.looks,
        "findings": len(judgement.rows),
        "unjudged": [asdict(gap) for gap in judgement.not_judged],
        "watch": [verdict.name for verdict in judgement.watch],
        "watched": [_row(verdict, place, keys) for place, verdict in enumerate(judgement.watch)],
        "runs": judgement.runs,
        "level_changes": [asdict(change) for change in judgement.changes],
        "smallest": [asdict(smallest) for smallest in judgement.smallest],
        "facts": judgement.facts,
        "ranks": judgement.ranks,
    }


class Newer(NamedTuple):
    """What came after a judgement."""

    runs: int
    facts: int
    """Events that need no run, and timelines of training jobs."""


@dataclass(frozen=True)
class StoredJudgement:
    """The newest judgement of a cluster, of those about every run."""

    judgement: Judgement
    """Without `peers` where it was read."""
    judged_at: datetime | None
    """UTC, without a zone; None: it was made just now."""
    watch: tuple[str, ...]
    """Names of GPUs to measure again."""
    keys: tuple[frozenset[str], ...]
    """Of each of its rows, the keys of the GPUs that it covers: they stay when a card moves."""
    identity: str
    levels: int | None
    """How many levels are stored with it; None where none were."""

    def newer(self, store: Store) -> Newer:
        """What of the cluster came since."""
        if self.judged_at is None:
            return Newer(0, 0)
        cluster, judgement = self.judgement.cluster, self.judgement
        runs = store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())
        return Newer(
            max(0, int(store.collect(runs).item()) - (judgement.runs or 0)),
            max(0, facts_of(store, cluster) - (judgement.facts or 0)),
        )

    def is_complete(self, store: Store) -> bool:
        """Whether all levels that were stored with it can be read."""
        rows = store.scan(LEVELS.name).filter(pl.col("judgement") == self.identity).select(pl.len())
        return self.levels is not None and int(store.collect(rows).item()) == self.levels

    def of_gpus(self, store: Store) -> pl.LazyFrame:
        """The rows of `levels`."""
        return self._rows(store, LEVELS.name, None if self.judgement.peers is None else self.judgement.peers.levels)

    def of_days(self, store: Store) -> pl.LazyFrame:
        """The rows of `day_levels`."""
        return self._rows(store, DAY_LEVELS.name, None if self.judgement.peers is None else self.judgement.peers.days)

    def _rows(self, store: Store, name: str, levels: pl.DataFrame | None) -> pl.LazyFrame:
        if levels is not None:
            return levels.lazy()
        return store.scan(name).filter(pl.col("judgement") == self.identity)


def newest(store: Store) -> list[Judgement]:
    """The newest judgement of each cluster, of those about every run; empty where nothing was ever judged."""
    return [newest_of_cluster.judgement for newest_of_cluster in stored(store)]


def stored(store: Store, cluster: str | None = None) -> list[StoredJudgement]:
    """The same of a cluster, or of every one, with what else is stored of it."""
    of_all_runs = pl.sql_expr(OF_ALL_RUNS)
    chosen_rows = of_all_runs if cluster is None else of_all_runs & (pl.col("cluster") == cluster)
    newest_rows = _readable(store).filter(chosen_rows).sort("judged_at").group_by("cluster").last()
    judgements = store.collect(newest_rows.sort("cluster"))
    chosen = judgements["judgement"].implode()
    verdicts = store.collect(store.scan("verdicts").filter(pl.col("judgement").is_in(chosen)).sort("place"))
    by_judgement: dict[str, list[Mapping[str, Any]]] = {}
    for row in verdicts.iter_rows(named=True):
        by_judgement.setdefault(row["judgement"], []).append(row)
    return [_stored(row, by_judgement.get(row["judgement"], ())) for row in judgements.iter_rows(named=True)]


def _stored(row: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> StoredJudgement:
    cluster = row["cluster"]
    readable = [verdict for verdict in verdicts if is_known(verdict)]
    gaps = [NotJudged(cluster, **_coded(fields)) for fields in row["unjudged"] or ()]
    gaps += [NotJudged(cluster, verdict["name"], Gap.NEWER) for verdict in verdicts if not is_known(verdict)]
    watched = (fields | {"cluster": cluster} for fields in row["watched"] or () if is_known(fields))
    judgement = Judgement(
        cluster, tuple(map(verdict_of, readable)), tuple(gaps), row["gpus"], row["looks"],
        watch=tuple(map(verdict_of, watched)),
        smallest=tuple(Smallest(**_coded(fields)) for fields in row["smallest"] or ()),
        changes=tuple(
            Change(**_coded(fields) | {"joined_with": _measured(fields["joined_with"])})
            for fields in row["level_changes"] or ()
        ),
        runs=row["runs"], ranks=row["ranks"] or 0, facts=row["facts"],
    )  # fmt: skip
    covered = tuple(frozenset(keys_of(verdict)) for verdict in readable)
    return StoredJudgement(
        judgement, row["judged_at"], tuple(row["watch"] or ()), covered, row["judgement"], row["levels"]
    )


def is_known(row: Mapping[str, Any]) -> bool:
    """Whether this whorl knows the codes of a row of `verdicts`."""
    return all(row[name] in set(_CODES[name]) for name in ("kind", "level", "state"))


_CODES: Mapping[str, type[StrEnum]] = {
    "kind": Kind, "level": Level, "state": State, "why": Gap, "reference": ComparedWith, "action": Action
}  # fmt: skip
"""By the name of a field, the codes that it holds."""


def _coded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Stored fields with their codes. Of a newer whorl's, a gap is `Gap.NEWER`, and else None: it tells a program
    nothing."""
    coded = dict(fields)
    for name, codes in _CODES.items():
        if coded.get(name) is not None:
            newer = Gap.NEWER if codes is Gap else None
            coded[name] = codes(coded[name]) if coded[name] in set(codes) else newer
    return coded


def _measured(values: Sequence[Mapping[str, Any]] | None) -> tuple[Measured, ...]:
    return tuple(Measured(**value) for value in values or ())


def keys_of(row: Mapping[str, Any]) -> list[str]:
    """The keys of the GPUs that a row of `verdicts` covers."""
    return [member["gpu"] for member in row["gpus"] or ()]


def _content(judgement: Judgement) -> str:
    text = json.dumps(_fields(replace(judgement, peers=None)), ensure_ascii=False, default=_fields)
    return hashlib.sha256(f"{judgement.gpus} {judgement.looks} {judgement.runs} {text}".encode()).hexdigest()[:16]


def _fields(record: object) -> object:
    """The fields of a record; anything else as text. `asdict` copies all that is in them, too."""
    return (
        {name: getattr(record, name) for name in record.__dataclass_fields__} if is_dataclass(record) else str(record)
    )


def _arrow(name: str, frames: Sequence[pl.DataFrame]) -> pa.Table:
    schema = arrow_schema(name)
    rows = pl.concat(frames).select(schema.names).to_arrow()
    return rows.cast(schema.remove_metadata())


def _readable(store: Store) -> pl.LazyFrame:
    """The rows of `judgements` whose findings are all there: of a damaged file of `verdicts`, none would be told."""
    rows = store.scan("verdicts").group_by("judgement").agg(pl.len().alias("read"))
    judgements = store.scan("judgements").join(rows, on="judgement", how="left")
    return judgements.filter(pl.col("findings") == pl.col("read").fill_null(0)).drop("read")


def _last(store: Store) -> dict[tuple[str, str | None, bool], tuple[str, datetime]]:
    """The content of the newest judgement and when it was made, by cluster, campaign and whether it is since a time."""
    kind = ("cluster", "campaign", "dated")
    dated = _readable(store).with_columns(pl.col("since").is_not_null().alias("dated"))
    newest_rows = dated.sort("judged_at").group_by(kind).last()
    rows = store.collect(newest_rows.select(*kind, "content", "judged_at"))
    return {(cluster, campaign, dated): (content, at) for cluster, campaign, dated, content, at in rows.iter_rows()}


def _keys(store: Store) -> dict[tuple[str, str], str]:
    """By cluster and name, the key of a GPU: the UUID, where one of two rows of a GPU has it."""
    rows = store.sql("select cluster, name, gpu from gpus_now order by uuid is not null").to_pylist()
    return {(row["cluster"], row["name"]): row["gpu"] for row in rows}


def _row(verdict: Verdict, place: int, keys: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(verdict, name) for name in VERDICTS.names if hasattr(verdict, name)}
    gpus = [{"name": name, "gpu": keys.get((verdict.cluster, name), name)} for name in verdict.gpus]
    return (
        fields
        | {"place": place, "gpus": gpus, "causes": [asdict(part) for part in verdict.causes]}
        | {"measured": [asdict(value) for value in verdict.measured]}
    )


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """A row of `verdicts`."""
    fields = _coded({name: row[name] for name in Verdict.__slots__})
    lists = {name: tuple(fields[name] or ()) for name in ("workloads", "runs")}
    lists["gpus"] = tuple(part["name"] for part in row["gpus"] or ())
    lists["causes"] = tuple(Part(**part) for part in row["causes"] or ())
    lists["measured"] = _measured(row["measured"])
    action = fields["action"] or action_of(fields["kind"])
    return Verdict(**fields | lists | {"action": action, "at_clock": bool(row["at_clock"])})
