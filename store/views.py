"""The views of a store: queries over its tables that have names."""

from __future__ import annotations

from typing import NamedTuple

from .schema import GPUS, MINUTES, TELEMETRY, Column, of_a_minute
from .vocabulary import GpuFrom, JobSource, record


class View(NamedTuple):
    """A query over tables that is named in every store: what a row is, and the SQL, which selects from tables by name.

    `made`: the columns that no table has.
    """

    name: str
    row: str
    sql: str
    made: tuple[Column, ...] = ()


def _newest(name: str) -> str:
    """The column `name` of the newest identity in which it is known."""
    return f"last({name} ORDER BY first_seen NULLS FIRST) FILTER (WHERE {name} IS NOT NULL)"


_PLACED = ("node", "slot", "cabinet", "place")  # taken from one identity: a GPU that moved must not keep its old slot
_STRUCT = ", ".join(f"{name} := {name}" for name in _PLACED)
_HERE = (  # the node of the newest identity in which one is known
    "last_value(node IGNORE NULLS) OVER (PARTITION BY cluster, gpu ORDER BY first_seen NULLS FIRST "
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS here"
)
# Who tells the node alone, such as a log of nvidia-smi, does not move the GPU within it.
_AT_LAST = "ORDER BY slot IS NOT NULL, first_seen NULLS FIRST) FILTER (WHERE node = here)"
_KEPT_APART = ("cluster", "gpu", "first_seen", "import_id")
# If several cards were in one slot, one after another, the last one has the slot's name. A key without a UUID is a
# place.
_HOLDS_SLOT = (
    "uuid IS NULL OR uuid = arg_max(uuid, coalesce(placed, TIMESTAMP '1970-01-01')) "
    "OVER (PARTITION BY cluster, node, slot, parent IS NULL)"
)


def now_of(gpus: str) -> str:
    """The view `gpus_now` of these rows of `gpus`."""
    return (
        f"SELECT cluster, gpu, CASE WHEN parent IS NULL AND node IS NOT NULL AND slot IS NOT NULL AND ({_HOLDS_SLOT}) "
        "THEN node || '/' || slot ELSE gpu END AS name, * EXCLUDE (cluster, gpu, placed) FROM (SELECT cluster, gpu, "
        f"unnest(last(struct_pack({_STRUCT}) {_AT_LAST}), last(first_seen {_AT_LAST} AS placed, "
        + ", ".join(f"{_newest(n)} AS {n}" for n in GPUS.names if n not in {*_PLACED, *_KEPT_APART})
        + f", min(first_seen) AS first_seen FROM (SELECT *, {_HERE} FROM {gpus}) GROUP BY cluster, gpu)"
    )


_NAME = Column(
    "name", "VARCHAR", "", "its name: node/slot where these are known and the card is the last one there, else its key"
)

GPUS_NOW = View(
    "gpus_now",
    "a GPU: its newest identity and its name. A study that names a GPU by place in one file and by UUID in "
    "another has a row for each",
    now_of("gpus"),
    (_NAME,),
)

MEASUREMENTS = View(
    "measurements",
    "a figure of a run with its conditions and the GPU's name and place: `results`, `runs` and `gpus_now` joined",
    "SELECT r.cluster, r.workload, coalesce(g.name, r.gpu) AS name, g.node, g.slot, g.model, r.gpu, s.figure, "
    "s.repeat, s.value, s.unit, r.campaign, r.began, r.ended, r.job_id, r.sm_clock_mhz, r.mem_clock_mhz, "
    "r.temperature_c, r.power_w, r.status, r.run_id FROM runs r JOIN results s USING (run_id) "
    f"LEFT JOIN ({GPUS_NOW.sql}) g ON r.cluster IS NOT DISTINCT FROM g.cluster "
    "AND r.gpu = g.gpu",
    (_NAME,),
)


_FIRMWARE = ("vbios", "inforom", "gsp_firmware", "driver")

OTHER_FIRMWARE = View(
    "other_firmware",
    "a GPU whose firmware or driver most GPUs of its model do not have: a row for each part",
    "SELECT cluster, gpu, name, node, model, part, version, usual_version, alike, gpus FROM (SELECT *, "
    "first_value(version) OVER (PARTITION BY cluster, model, part ORDER BY alike DESC, version) AS usual_version "
    "FROM (SELECT *, count(*) OVER (PARTITION BY cluster, model, part, version) AS alike, "
    "count(*) OVER (PARTITION BY cluster, model, part) AS gpus FROM (SELECT cluster, gpu, name, node, model, "
    f"unnest([{', '.join(repr(part) for part in _FIRMWARE)}]) AS part, unnest([{', '.join(_FIRMWARE)}]) AS version "
    f"FROM ({GPUS_NOW.sql}) WHERE parent IS NULL AND model IS NOT NULL) WHERE version IS NOT NULL)) "
    "WHERE version <> usual_version",
    (
        _NAME,
        Column("part", "VARCHAR", "", "vbios, inforom, gsp_firmware or driver"),
        Column("version", "VARCHAR", "", "its version"),
        Column("usual_version", "VARCHAR", "", "that of most GPUs of its model"),
        Column("alike", "BIGINT", "", "GPUs of its model with its version"),
        Column("gpus", "BIGINT", "", "GPUs of its model with a known version"),
    ),
)


def _as_minutes(column: Column) -> str:
    """A reading as a minute of one row."""
    return ", ".join(
        (column.name if part.type == column.type else f"CAST({column.name} AS {part.type})")
        + ("" if part.name == column.name else f" AS {part.name}")
        for part in of_a_minute(column)
    )


HISTORY = View(
    "history",
    "a reading (n is 1, and minimum, mean and maximum are equal), or a minute of pruned ones",
    f"SELECT {', '.join(MINUTES.names)} FROM telemetry_minutes UNION ALL SELECT ts, cluster, gpu, 1 AS n, "
    f"{', '.join(_as_minutes(c) for c in TELEMETRY.columns if c.kind)} FROM telemetry",
)

OF_ALL_RUNS = "campaign IS NULL AND since IS NULL"
"""SQL: whether a row of `judgements` is about all runs of a cluster, not about one campaign or those since a time."""

VERDICTS_NOW = View(
    "verdicts_now",
    "a finding of the newest judgement of its cluster that is about every run",
    "SELECT v.* FROM verdicts v JOIN (SELECT arg_max(judgement, judged_at) AS judgement FROM judgements "
    f"WHERE {OF_ALL_RUNS} GROUP BY cluster) USING (judgement)",
)

FINGERPRINTS_NOW = View(
    "fingerprints_now",
    "a figure of the newest fingerprint of a GPU",
    "SELECT * FROM fingerprints QUALIFY made_at = max(made_at) OVER (PARTITION BY cluster, gpu)",
)

CALIBRATIONS_NOW = View(
    "calibrations_now",
    "the newest calibration of the power sensor of a GPU",
    "SELECT * FROM calibrations QUALIFY made_at = max(made_at) OVER (PARTITION BY cluster, gpu)",
)

_WERE_THERE = (  # only these GPUs can have a name that a file of jobs says: most stores have no such file
    "(SELECT g.* FROM gpus g SEMI JOIN (SELECT cluster, gpu FROM gpus WHERE node || '/' || slot IN "
    f"(SELECT gpu FROM jobs WHERE gpu_from = '{GpuFrom.FILE}')) h "
    "ON g.gpu = h.gpu AND g.cluster IS NOT DISTINCT FROM h.cluster)"
)
_ALWAYS, _NEVER = "TIMESTAMP '1970-01-01'", "TIMESTAMP '2262-01-01'"


def cards(gpus: str) -> str:
    """Who was in which slot, from when to when, by these rows of `gpus`: cluster, name, gpu, since, until.

    Cards are exchanged, and a reboot may number them anew. The first card that was seen in a slot counts as there
    before too, as a file may be older than what the store knows of its GPUs.
    """
    return (
        f"SELECT cluster, name, gpu, IF(here = 1 AND of_gpu = 1, {_ALWAYS}, seen) AS since, coalesce(until, {_NEVER}) "
        "AS until FROM (SELECT *, node || '/' || slot AS name, least(lead(seen) OVER place, lead(seen) OVER card) "
        "AS until, row_number() OVER place AS here, row_number() OVER card AS of_gpu "
        "FROM (SELECT cluster, gpu, uuid, node, slot, "
        f"coalesce(first_seen, {_ALWAYS}) AS seen FROM {gpus} WHERE parent IS NULL AND node IS NOT NULL "
        # A file that says node and slot of a card, and not its UUID, was given it by its name.
        "QUALIFY (uuid IS NOT NULL OR max(uuid) OVER (PARTITION BY cluster, gpu) IS NULL) "
        "AND (slot IS NOT NULL OR count(slot) OVER (PARTITION BY cluster, gpu, node) = 0)) "
        "WINDOW place AS (PARTITION BY cluster, node, slot ORDER BY seen, gpu), "
        "card AS (PARTITION BY cluster, gpu ORDER BY seen, node, slot)) WHERE name IS NOT NULL "
        # Beside a key without a UUID nobody knows which card it was.
        "QUALIFY bool_and(uuid IS NOT NULL) OVER (PARTITION BY cluster, name) "
        "OR count(DISTINCT gpu) OVER (PARTITION BY cluster, name) = 1"
    )


_NEAR = "INTERVAL 5 MINUTES"  # between the clocks of a node and of the controller
_RANKED = (JobSource.EXPORTER, JobSource.SCONTROL, JobSource.CGROUP)
"""Sources of jobs that count only where none of a higher rank names the GPUs of the job on the node, first the best."""
_WEAK = ", ".join(f"'{source}'" for source in _RANKED)
_RANK = f"coalesce(list_position([{_WEAK}], {{0}}), 0)"
_TOLD_BETTER = (
    f"SELECT cluster, raw_id, node, {_RANK.format('source')} AS rank, gpu IS NOT NULL AS named, "
    f"began - {_NEAR} AS since, coalesce(ended + {_NEAR}, {_NEVER}) AS until FROM newest WHERE source <> "
    f"'{JobSource.CGROUP}' AND raw_id IN (SELECT raw_id FROM jobs WHERE source IN ({_WEAK}))"  # most stores have none
)

JOBS_NOW = View(
    "jobs_now",
    "an allocation as known now: its newest record. No time of a GPU counts twice: accounting takes the place of "
    "a tag, and of exporter, scontrol and collector the first one that names the job's GPUs on the node counts, "
    "if nothing better does. A GPU that a file calls by name has the key of the card that was there",
    "SELECT * FROM (WITH newest AS (SELECT * FROM jobs QUALIFY recorded = max(recorded) OVER (PARTITION BY cluster, "
    f"allocation)), named AS ({cards(_WERE_THERE)}) SELECT n.* REPLACE (coalesce(k.gpu, n.gpu) AS gpu) FROM "
    "(SELECT n.* FROM newest n ANTI JOIN (SELECT cluster, tag FROM newest WHERE tag IS NOT NULL) t "
    f"ON t.tag = n.allocation AND t.cluster IS NOT DISTINCT FROM n.cluster ANTI JOIN ({_TOLD_BETTER}) e "
    f"ON e.rank < {_RANK.format('n.source')} AND (e.named OR n.gpu IS NULL) AND e.raw_id = n.raw_id "
    "AND e.node = n.node AND e.cluster IS NOT DISTINCT FROM n.cluster "
    "AND n.began < e.until AND e.since < coalesce(n.ended, n.recorded)"
    f") n LEFT JOIN named k ON n.gpu_from = '{GpuFrom.FILE}' "
    "AND k.name = n.gpu AND k.cluster IS NOT DISTINCT FROM n.cluster AND n.began >= k.since AND n.began < k.until)",
)

JOBS_ON_GPU = View(
    "jobs_on_gpu",
    "an allocation of a GPU that is known, with the GPU's name, slot and model",
    f"SELECT coalesce(g.name, j.gpu) AS name, g.slot, g.model, j.* FROM ({JOBS_NOW.sql}) j LEFT JOIN "
    f"({GPUS_NOW.sql}) g ON g.gpu = j.gpu AND g.cluster IS NOT DISTINCT FROM j.cluster WHERE j.gpu IS NOT NULL",
    (_NAME,),
)

TELEMETRY_OF_JOB = View(
    "telemetry_of_job",
    "a reading of a GPU while a job had it. Give `job_id` or `raw_id` and a range of `ts`, so that few files are "
    "read. A GPU that jobs share has a row for each job",
    "SELECT j.job_id, j.raw_id, j.allocation, j.user, j.account, j.share, j.began, j.ended, t.* "
    f"FROM ({JOBS_NOW.sql}) j JOIN telemetry t ON t.gpu = j.gpu "
    "AND t.cluster IS NOT DISTINCT FROM j.cluster AND t.ts >= j.began "
    "AND t.ts < coalesce(j.ended, TIMESTAMP '2262-01-01')",
)


FIGURES = (
    Column("n", "BIGINT", "", "readings in the window"),
    Column("power_mean_w", "DOUBLE", "W", "mean board power"),
    Column("power_median_w", "DOUBLE", "W", "median of it, in steps of 0.1 W"),
    Column("power_p95_w", "DOUBLE", "W", "95th percentile of it, in steps of 0.1 W"),
    Column("energy_j", "DOUBLE", "J",
           "energy of the whole GPU; NULL where readings are of less than half of the window"),
    Column("energy_from", "VARCHAR", "",
           "'counter': growth of the energy counter; 'power': mean power times seconds, where the counter is "
           "missing or wrong"),
    Column("sm_clock_mean_mhz", "DOUBLE", "MHz", "mean SM clock"),
    Column("temperature_max_c", "BIGINT", "degC", "highest GPU temperature"),
)  # fmt: skip
"""The figures of a window, in this order."""
WINDOW_FIGURES = record({column.name: column.type for column in FIGURES})

NOTE, FIND = "note_window", "window_of_telemetry"
"""SQL functions, see `windows.Windows`."""

WINDOW = {"cluster": "VARCHAR", "gpu": "VARCHAR", "began": "TIMESTAMP", "ended": "TIMESTAMP", "until": "TIMESTAMP"}
"""What names a window, with types. Its readings have began <= ts < until. It ends at `ended`, for a window that is
still open (NULL) at its last reading."""


def _windows(keys: tuple[str, ...], source: str, until: str) -> str:
    """What telemetry says of windows: rows of `source` (FROM and WHERE), from `began` to before `until`.

    The windows are noted, and sorted so that all of them are noted before the first one is looked for.
    """
    figures = ", ".join(f"figures.{column.name}" for column in FIGURES)
    return (
        f"SELECT {', '.join(keys)}, {figures} FROM (SELECT *, {FIND}(number) AS figures FROM "
        f"(SELECT *, {NOTE}({', '.join(WINDOW)}) AS number FROM "
        f"(SELECT {', '.join(keys)}, {until} AS until FROM {source} AND gpu IS NOT NULL AND began IS NOT NULL) "
        "ORDER BY number))"
    )


RUN_WINDOWS = View(
    "run_windows",
    "a run of a GPU that began and ended, and what telemetry says of this time. Readings of power that are marked in "
    "`quality`, under 0.5 W or over 5 kW do not count. Give `run_id`, `gpu` or a range of `began` where you can: else "
    "all of telemetry is read. Only whorl has this view",
    _windows(
        ("run_id", "cluster", "campaign", "workload", "gpu", "job_id", "began", "ended", "status"),
        "runs WHERE ended IS NOT NULL",
        "ended",
    ),
    FIGURES,
)

JOB_WINDOWS = View(
    "job_windows",
    "an allocation of a GPU that is known to a job, and what telemetry says of this time, as in `run_windows`; of one "
    "that runs, up to the last reading. Jobs that share a GPU have all of its power and energy each: see `share`. Give "
    "`job_id`, `allocation`, `gpu` or a range of `began`",
    _windows(
        ("allocation", "cluster", "job_id", "raw_id", "user", "account", "gpu", "share", "began", "ended"),
        f"({JOBS_NOW.sql}) WHERE job_id IS NOT NULL",
        "coalesce(ended, (SELECT max(ts) + INTERVAL 1 MICROSECOND FROM latest))",
    ),
    FIGURES,
)

_LOST = "INTERVAL 1 MINUTE"  # an open span is written every few seconds

SPANS_NOW = View(
    "spans_now",
    "a span, once: as it ended, else what it had used when last written",
    "SELECT *, 'ended' AS state FROM spans UNION ALL BY NAME SELECT o.*, CASE WHEN o.ended < "
    f"(now() AT TIME ZONE 'UTC') - {_LOST} THEN 'lost' ELSE 'open' END AS state FROM spans_open o ANTI JOIN spans s "
    "ON s.span = o.span AND s.cluster IS NOT DISTINCT FROM o.cluster "
    "QUALIFY row_number() OVER (PARTITION BY o.cluster, o.span ORDER BY o.ended DESC) = 1",
    (Column("state", "VARCHAR", "", "'ended', 'open', or 'lost': nothing was written of it for a minute"),),
)

_HEAD = "(s.span = i.top OR NOT s.within_parent)"  # rows whose figures no other row inside the same span includes

SPANS_TOTAL = View(
    "spans_total",
    "a span with all spans inside it, also those of other processes and nodes",
    f"SELECT * FROM (WITH RECURSIVE known AS ({SPANS_NOW.sql}), "
    "inside AS (SELECT cluster, span AS top, span FROM known UNION SELECT i.cluster, "
    "i.top, s.span FROM inside i JOIN known s ON s.parent = i.span AND s.cluster IS NOT DISTINCT FROM i.cluster), "
    f"every AS (SELECT i.top, s.*, {_HEAD} AS head FROM inside i JOIN known s ON s.span = i.span "
    "AND s.cluster IS NOT DISTINCT FROM i.cluster), "
    "processes AS (SELECT cluster, top, gpu, min(began) AS began, max(ended) AS ended FROM (SELECT cluster, top, "
    "began, ended, coalesce(process, split_part(span, '-', 1)) AS process, unnest(gpus) AS gpu FROM every "
    "WHERE head) GROUP BY cluster, top, gpu, process), "
    "reads AS (SELECT cluster, top, began, max(ended) OVER (PARTITION BY cluster, top, gpu ORDER BY began ROWS BETWEEN "
    "UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM processes), "
    "twice AS (SELECT cluster, top, coalesce(bool_or(began < before), false) AS twice FROM reads GROUP BY ALL), "
    "sums AS (SELECT cluster, top, count(*) AS spans, count(*) FILTER (WHERE state <> 'ended') AS unfinished, "
    "sum(own_j) AS total_j, sum(low_j) FILTER (WHERE head) AS low_j, sum(high_j) FILTER (WHERE head) AS high_j, "
    "count(*) > count(own_j) OR bool_or(head AND high_j IS NULL) AS unknown FROM every GROUP BY ALL), "
    "summed AS (SELECT s.*, coalesce(t.twice, false) AS twice FROM sums s LEFT JOIN twice t ON t.top = s.top "
    "AND t.cluster IS NOT DISTINCT FROM s.cluster) "
    "SELECT s.cluster, s.span, s.parent, s.trace_id, s.name, s.attributes, s.job_id, s.node, s.began, s.ended, "
    "s.state, k.spans, k.unfinished, "
    + "".join(
        f"CASE WHEN NOT (k.unknown OR k.twice) THEN k.{name} END AS {name}, " for name in ("total_j", "low_j", "high_j")
    )
    + "k.twice, s.own_j, s.error FROM known s JOIN summed k ON k.top = s.span "
    "AND k.cluster IS NOT DISTINCT FROM s.cluster)",
    (
        Column("state", "VARCHAR", "", "'ended', 'open' or 'lost': of itself, see `spans_now`"),
        Column("spans", "BIGINT", "", "how many spans these are, itself included"),
        Column("unfinished", "BIGINT", "", "how many of them had not ended when they were last written"),
        Column("total_j", "DOUBLE", "J", "energy of all of them; NULL where that of one is not known, or twice"),
        Column("twice", "BOOLEAN", "", "whether two processes counted all of the same GPU at the same time"),
    ),
)

WINDOWS = (RUN_WINDOWS, JOB_WINDOWS)
"""Those that need the functions of `windows`, which only whorl has."""

VIEWS: tuple[View, ...] = (
    GPUS_NOW, OTHER_FIRMWARE, MEASUREMENTS, HISTORY, VERDICTS_NOW, FINGERPRINTS_NOW, CALIBRATIONS_NOW, JOBS_NOW,
    JOBS_ON_GPU, TELEMETRY_OF_JOB, *WINDOWS, SPANS_NOW, SPANS_TOTAL,
)  # fmt: skip

PLAIN_VIEWS = tuple(view for view in VIEWS if view not in WINDOWS)
"""Those of every DuckDB client."""
