"""Every table and column of a store, with type, unit and meaning, written once.

The views, the checks, `whorl schema` and `docs/tables.md` are all made from `TABLES`.
A type is spelled as DuckDB spells it; `arrow_schema` gives the Arrow one. What GPUs' drivers give stands in `metrics`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from .allocations import JOBS
from .columns import CLUSTER, IMPORT, Column
from .columns import Table as Table
from .metrics import METRICS
from .spans import SPANS

if TYPE_CHECKING:
    import pyarrow as pa

# The number in `store.toml` and in every file's metadata. It grows when an older whorl would misunderstand a file; a
# new nullable column alone does not change it. Formats 1 and 2 were never released.
FORMAT = 3


def other_format(version: str) -> str | None:
    """Why this whorl does not read what has this format number; None if it does."""
    if version == str(FORMAT):
        return None
    if version.isdecimal() and int(version) < FORMAT:
        return f"it has format {version}, from before the first release of whorl: import or measure again"
    return f"it has format {version or '?'} but this whorl reads format {FORMAT}; install a newer whorl"


CATALOG = "whorl.duckdb"  # the file of views and macros


_GPU = Column("gpu", "VARCHAR", "", "the GPU: its UUID, else its place (cabinet-node-device), else its name")
_WORKLOAD = Column("workload", "VARCHAR", "", "what ran: the application of an imported file or a probe's name")

GPUS = Table(
    "gpus",
    "an identity of a GPU, and when it was first seen",
    (
        CLUSTER,
        _GPU,
        Column("uuid", "VARCHAR", "", "UUID of the physical GPU, as the driver writes it"),
        Column("place", "VARCHAR", "", "cabinet-node-device; a row with both place and uuid links them"),
        Column("cabinet", "VARCHAR", "", "cabinet or rack"),
        Column("node", "VARCHAR", "", "host, unique within the cluster"),
        Column("slot", "INTEGER", "", "position of the GPU within its node"),
        Column("model", "VARCHAR", "", "product name"),
        Column("serial", "VARCHAR", "", "board serial number"),
        Column("vbios", "VARCHAR", "", "firmware version"),
        Column("driver", "VARCHAR", "", "driver version"),
        Column("pci_bus_id", "VARCHAR", "", "PCI address"),
        Column("nvml_index", "INTEGER", "", "index in the driver at that time; never a key"),
        Column("power_limit_mw", "INTEGER", "mW", "enforced power limit"),
        Column("power_limit_default_mw", "INTEGER", "mW", "power limit as delivered"),
        Column("power_limit_min_mw", "INTEGER", "mW", "lowest power limit that can be set"),
        Column("power_limit_max_mw", "INTEGER", "mW", "highest power limit that can be set"),
        Column("sm_clock_max_mhz", "INTEGER", "MHz", "maximum SM clock"),
        Column("mem_clock_max_mhz", "INTEGER", "MHz", "maximum memory clock"),
        Column("temperature_max_operating_c", "INTEGER", "degC", "highest GPU temperature in operation"),
        Column("temperature_slowdown_c", "INTEGER", "degC", "GPU temperature from which the hardware slows the clock"),
        Column("temperature_shutdown_c", "INTEGER", "degC", "GPU temperature at which it shuts down"),
        Column("memory_total", "BIGINT", "B", "device memory"),
        Column("parent", "VARCHAR", "", "of a MIG instance: the UUID of the physical GPU; NULL for a whole GPU"),
        Column("mig_profile", "VARCHAR", "", "of a MIG instance: its profile, as 1g.10gb; NULL for a whole GPU"),
        Column(
            "first_seen",
            "TIMESTAMP_NS",
            "UTC",
            "when this identity was seen first, or first again after another; NULL where unknown",
        ),
        IMPORT,
    ),
    sorted_by=("cluster", "gpu"),
)

TELEMETRY = Table(
    "telemetry",
    "the metrics of a GPU at one time",
    (
        Column("ts", "TIMESTAMP_NS", "UTC", "when the reading was taken", "DELTA_BINARY_PACKED"),
        CLUSTER,
        _GPU,
        *(Column(m.name, m.type, m.unit, m.description, m.encoding, m.kind) for m in METRICS),
        Column("read_us", "INTEGER", "us", "how long the driver took to answer for this GPU", kind="gauge"),
        Column(
            "quality", "VARCHAR", "", "what is wrong with this row's sensors; NULL where nothing is known", kind="text"
        ),
        IMPORT,
    ),
    sorted_by=("gpu", "ts"),
    partitioned=True,
)

CAMPAIGNS = Table(
    "campaigns",
    "the progress of a campaign when the row was stored; if there are several rows, the last `stored_to` counts",
    (
        CLUSTER,
        Column("campaign", "VARCHAR", "", "name of the campaign"),
        Column("asked", "VARCHAR", "", "JSON object: what was asked for, by argument"),
        Column("fleet", "VARCHAR", "", "of a simulated fleet: its identity, the same in all its campaigns"),
        Column("born", "TIMESTAMP_NS", "UTC", "of a simulated fleet: when it was new; its age counts from here"),
        Column("gpus", "INTEGER", "", "number of GPUs"),
        Column("began", "TIMESTAMP_NS", "UTC", "when it began"),
        Column(
            "stored_to",
            "TIMESTAMP_NS",
            "UTC",
            "everything before this time is stored; `began` if nothing is stored yet",
        ),
        Column("ended", "TIMESTAMP_NS", "UTC", "when it ended, or will end; NULL while unknown"),
    ),
    sorted_by=("cluster", "campaign", "stored_to"),
)

RUNS = Table(
    "runs",
    "one workload or probe on one GPU, once",
    (
        Column("run_id", "VARCHAR", "", "identity of the run: the same row of any file of one cluster has the same"),
        CLUSTER,
        Column("campaign", "VARCHAR", "", "the campaign it belongs to; NULL where it was imported"),
        _WORKLOAD,
        _GPU,
        Column("job_id", "VARCHAR", "", "the batch job; the GPUs of one job ran together"),
        Column("began", "TIMESTAMP_NS", "UTC", "when it began; NULL where unknown"),
        Column("ended", "TIMESTAMP_NS", "UTC", "when it ended; NULL where unknown"),
        Column("sm_clock_mhz", "DOUBLE", "MHz", "median SM clock while it ran"),
        Column("mem_clock_mhz", "DOUBLE", "MHz", "median memory clock while it ran"),
        Column("temperature_c", "DOUBLE", "degC", "median GPU temperature while it ran"),
        Column("power_w", "DOUBLE", "W", "median board power while it ran"),
        Column("conditions", "VARCHAR", "", "the stated conditions, a JSON object: input size, warm-up, kernel"),
        Column("probe_version", "VARCHAR", "", "version of the probe; NULL where it was imported"),
        Column("versions", "VARCHAR", "", "JSON object: version by software and driver; NULL where it was imported"),
        Column("clock_events", "VARCHAR", "", "JSON object: s that the clock was held down while it ran, by reason"),
        Column(
            "ended_by",
            "VARCHAR",
            "",
            "why it ended: 'precise', 'time limit', 'most repeats', 'complete' (its length is fixed) or 'failed' (no "
            "figures); NULL where it was imported",
        ),
        Column("status", "VARCHAR", "", "how it came out, a code: 'ok', else why not to trust it"),
        Column("status_detail", "VARCHAR", "", "the same in a sentence; NULL where it is 'ok'"),
        IMPORT,
    ),
    sorted_by=("cluster", "workload", "gpu", "began"),
)

RESULTS = Table(
    "results",
    "one figure of one run",
    (
        Column("run_id", "VARCHAR", "", "the run of `runs`"),
        CLUSTER,
        _WORKLOAD,
        _GPU,
        Column("repeat", "INTEGER", "", "which repeat of the run, from 0"),
        Column("figure", "VARCHAR", "", "name of the figure; 'time' is the duration that `whorl variability` compares"),
        Column("unit", "VARCHAR", "", "unit of `value`; times are in ms"),
        Column("value", "DOUBLE", "`unit`", "the figure"),
    ),
    sorted_by=("cluster", "workload", "gpu"),
)

EVENTS = Table(
    "events",
    "something that happened to a GPU",
    (
        Column("ts", "TIMESTAMP_NS", "UTC", "when it happened or was noticed"),
        CLUSTER,
        _GPU,
        Column("node", "VARCHAR", "", "the host; if the event concerns no single GPU, gpu is NULL"),
        Column("kind", "VARCHAR", "", "what kind of event, a code; it says which of the next columns are filled"),
        Column("workload", "VARCHAR", "", "the probe that it is about"),
        Column("metric", "VARCHAR", "", "the column of `telemetry` that it is about"),
        Column("quality", "VARCHAR", "", "the mark of `telemetry.quality` that it is about"),
        Column("code", "BIGINT", "", "number of an error: of an XID, the driver's"),
        Column("before", "DOUBLE", "of `metric`", "what it was"),
        Column("value", "DOUBLE", "of `metric`", "what it is now; of a power sensor, mW"),
        Column("n", "BIGINT", "", "how many: ticks, wrong elements, MIG instances"),
        Column("duration_ns", "BIGINT", "ns", "how long"),
        Column("version", "VARCHAR", "", "version of the driver"),
        Column("campaign", "VARCHAR", "", "the campaign in which it happened; NULL where it belongs to none"),
        Column("job_id", "VARCHAR", "", "the batch job in which it happened; NULL where it belongs to none"),
        Column("detail", "VARCHAR", "", "the same in a sentence, for people"),
        IMPORT,
    ),
    sorted_by=("gpu", "ts"),
)

IMPORTS = Table(
    "imports",
    "one workload of one imported file: its provenance and row counts",
    (
        Column("import_id", "VARCHAR", "", "identity of the import: hash of the content and the options"),
        Column("file", "VARCHAR", "", "name of the file, without its folder"),
        Column("sha256", "VARCHAR", "", "SHA-256 of the file's content after decompression"),
        Column("bytes", "BIGINT", "B", "size of the content after decompression"),
        Column("format", "VARCHAR", "", "the format that was recognised"),
        CLUSTER,
        Column("workload", "VARCHAR", "", "the workload these counts are for; NULL for telemetry"),
        Column("rows", "BIGINT", "", "rows read"),
        Column("kept", "BIGINT", "", "rows stored"),
        Column("duplicates", "BIGINT", "", "exact duplicates dropped, within the file or already in the store"),
        Column("refused", "BIGINT", "", "rows refused"),
        Column("placeholders", "BIGINT", "", "values turned into NULL because they stand for 'unknown'"),
        Column("units", "VARCHAR", "", "JSON object: column -> unit taken and from what"),
        Column("options", "VARCHAR", "", "JSON object: the options given"),
        Column("notes", "VARCHAR", "", "JSON list: what the importer noticed"),
        Column("importer", "VARCHAR", "", "version of the importer"),
        Column("imported_at", "TIMESTAMP_NS", "UTC", "when"),
    ),
)

TRUTH = Table(
    "truth",
    "the fault planted in a simulated GPU: used to judge detectors, never read by analysis",
    (
        CLUSTER,
        _GPU,
        Column("kind", "VARCHAR", "", "the fault, or 'ok' for a healthy GPU"),
        Column("began", "TIMESTAMP_NS", "UTC", "when the fault began; NULL where it was there from the start"),
        Column("ended", "TIMESTAMP_NS", "UTC", "when it ended; NULL where it did not"),
        Column("size_pct", "DOUBLE", "%", "how large the fault is; NULL for a kind without a size"),
        Column("population", "VARCHAR", "", "the population that the fleet was drawn from"),
        Column("silicon", "VARCHAR", "", "JSON object: what was drawn for this GPU, by parameter"),
        Column("model", "VARCHAR", "", "the simulated model"),
        Column("seed", "BIGINT", "", "seed of the fleet"),
        Column("parameters", "VARCHAR", "", "version of the simulation's parameter set"),
    ),
    sorted_by=("cluster", "gpu"),
)

# -- what whorl concluded -------------------------------------------------------------------------------------

_JUDGEMENT = Column("judgement", "VARCHAR", "", "the row of `judgements`")
_VERSION_OF = Column("version", "VARCHAR", "", "version of whorl")

JUDGEMENTS = Table(
    "judgements",
    "a time at which the GPUs of a cluster were judged: what was looked at, and what could not be judged",
    (
        Column("judgement", "VARCHAR", "", "its identity"),
        CLUSTER,
        Column("campaign", "VARCHAR", "", "the campaign that it is about; NULL: every run of the cluster"),
        Column("since", "TIMESTAMP_NS", "UTC", "runs before this time were left out; NULL: none"),
        Column("judged_at", "TIMESTAMP_NS", "UTC", "when"),
        _VERSION_OF,
        Column("gpus", "INTEGER", "", "how many GPUs were judged"),
        Column("looks", "INTEGER", "", "how many comparisons were made"),
        Column("findings", "INTEGER", "", "how many rows of `verdicts` it has; 0 is an answer too"),
        Column("not_judged", "VARCHAR", "", "JSON list: what was not judged (`subject`) and `why`"),
        Column("watch", "VARCHAR", "", "JSON list: names of GPUs to measure again: newly slower than their own past"),
        Column("runs", "BIGINT", "", "how many runs the cluster had; NULL in older judgements"),
        Column(
            "changes",
            "VARCHAR",
            "",
            "JSON list: dates at which the level of a GPU changed (`gpu, workload, effect_pct, low_pct, high_pct, q, "
            "n, since, at, state, together, joined_with`): between `since` and `at`, for better or worse; NULL in "
            "older judgements",
        ),
        Column("content", "VARCHAR", "", "hash of what was concluded: the same again is not stored again"),
    ),
    sorted_by=("cluster", "judged_at"),
)

VERDICTS = Table(
    "verdicts",
    "a finding of a judgement about a GPU, a node or a batch; nothing is changed later, a new judgement adds its own",
    (
        _JUDGEMENT,
        CLUSTER,
        Column("judged_at", "TIMESTAMP_NS", "UTC", "when"),
        _VERSION_OF,
        Column("place", "INTEGER", "", "its place in the judgement, from 0; the worst comes first"),
        Column("level", "VARCHAR", "", "'gpu', 'node' or 'batch'"),
        Column("name", "VARCHAR", "", "of the GPU (`node/slot` where known), the node, or what the batch shares"),
        Column("gpus", "VARCHAR", "", "JSON list: names of the GPUs that it covers"),
        Column("keys", "VARCHAR", "", "JSON list: `gpu` of the same GPUs (the UUID), which stays when a card moves"),
        Column("model", "VARCHAR", "", "product name; NULL where it covers several or none is known"),
        Column("workloads", "VARCHAR", "", "JSON list: in which it shows, the largest effect first"),
        Column("kind", "VARCHAR", "", "what it says, a code: 'slow', 'hot', 'lost', ..."),
        Column("state", "VARCHAR", "", "'suspected': seen in one sitting; 'confirmed': in two or more"),
        Column("effect_pct", "DOUBLE", "%", "in the first of `workloads`, of the peers' level; slower is positive"),
        Column("low_pct", "DOUBLE", "%", "lower end of the 95 % interval of the level in another sitting"),
        Column("high_pct", "DOUBLE", "%", "upper end of it"),
        Column("p", "DOUBLE", "", "chance that a healthy one shows this"),
        Column("q", "DOUBLE", "", "share of false findings among those that are at least as clear"),
        Column("n", "INTEGER", "", "GPUs, or nodes where nodes are compared, itself included; `reference` says which"),
        Column("causes", "VARCHAR", "", "JSON list: parts of the effect (`what, pct, low_pct, high_pct`)"),
        Column("looks", "VARCHAR", "", "the finding in a sentence"),
        Column("first_seen", "TIMESTAMP_NS", "UTC", "when the first run that shows it began"),
        Column("last_seen", "TIMESTAMP_NS", "UTC", "when the last one began"),
        Column("runs", "VARCHAR", "", "JSON list: `run_id` of the runs that show it"),
        Column("action", "VARCHAR", "", "what to do, in a sentence"),
        Column("reference", "VARCHAR", "", "what it was compared with, in words"),
        Column(
            "figure",
            "VARCHAR",
            "",
            "what the effect is of, a code: 'time', 'temperature rise', 'highest clock', ...; of 'throttled runs' it "
            "is in percentage points; '' of what was seen and not measured; NULL in older judgements",
        ),
    ),
    sorted_by=("cluster", "judged_at", "place"),
)

FINGERPRINTS = Table(
    "fingerprints",
    "a figure of one GPU, in one workload or class of workloads, as known when it was made; a new fingerprint stands "
    "beside the earlier ones",
    (
        CLUSTER,
        _GPU,
        Column("serial", "VARCHAR", "", "board serial number; NULL where unknown"),
        Column("model", "VARCHAR", "", "product name"),
        Column("class", "VARCHAR", "", "what the workload stresses: compute, memory, power, latency, path or other"),
        Column("workload", "VARCHAR", "", "the workload; NULL: the whole class, or the GPU"),
        Column("figure", "VARCHAR", "", "name of the figure, as `time` or `sm_clock`"),
        Column("unit", "VARCHAR", "", "unit of `value`; '' for a ratio to the peers"),
        Column("value", "DOUBLE", "`unit`", "median over the GPU's sittings"),
        Column("low", "DOUBLE", "`unit`", "lower end of the 95 % interval of the value in another sitting"),
        Column("high", "DOUBLE", "`unit`", "upper end of it; NULL where no GPU has two sittings"),
        Column("ratio", "DOUBLE", "", "`value` over the median of the peers: GPUs of its model with the same workload"),
        Column("ratio_low", "DOUBLE", "", "lower end of its interval, as of `low`"),
        Column("ratio_high", "DOUBLE", "", "upper end of it"),
        Column("rank", "INTEGER", "", "its place among the peers by `value`, from 1, the lowest first"),
        Column("peers", "INTEGER", "", "how many GPUs were compared, itself included"),
        Column("n", "INTEGER", "", "its runs"),
        Column("sittings", "INTEGER", "", "its sittings: runs without a pause of 6 hours or more"),
        _VERSION_OF,
        Column("made_at", "TIMESTAMP_NS", "UTC", "when; the same for all rows of one fingerprint of a cluster"),
        Column("evidence", "VARCHAR", "", "JSON list: `run_id` of the newest runs behind it, 20 at most"),
    ),
    sorted_by=("cluster", "gpu", "made_at"),
)

# -- made from telemetry ------------------------------------------------------------------------------------

_WRITTEN = Column("written", "BIGINT", "ns", "when the row was stored, since 1970", "DELTA_BINARY_PACKED")

LATEST = Table(
    "latest",
    "the last reading of a GPU, however long ago",
    (*TELEMETRY.columns, _WRITTEN),
    sorted_by=("gpu", "ts"),
    made=True,
)


def of_a_minute(column: Column) -> tuple[Column, ...]:
    name, what, unit = column.name, column.description, column.unit
    match column.kind:
        case "gauge":
            return (
                Column(f"{name}_min", column.type, unit, f"lowest in the minute: {what}", column.encoding),
                Column(f"{name}_mean", "DOUBLE", unit, f"mean over the minute's rows: {what}"),
                Column(f"{name}_max", column.type, unit, f"highest in the minute: {what}", column.encoding),
            )
        case "counter":
            return (
                Column(f"{name}_first", column.type, unit, f"first in the minute: {what}", column.encoding),
                Column(f"{name}_last", column.type, unit, f"last in the minute: {what}", column.encoding),
            )
        case "mask":
            return (Column(name, column.type, unit, f"every bit set in the minute: {what}"),)
        case "text":
            return (Column(name, column.type, unit, f"any in the minute: {what}"),)
    return ()


MINUTES = Table(
    "telemetry_minutes",
    "one minute of a GPU's pruned telemetry",
    (
        Column("ts", "TIMESTAMP_NS", "UTC", "when the minute began", "DELTA_BINARY_PACKED"),
        CLUSTER,
        _GPU,
        Column("n", "BIGINT", "", "how many rows of telemetry it replaces; a late row of the minute makes another row"),
        *(part for column in TELEMETRY.columns for part in of_a_minute(column)),
    ),
    sorted_by=("gpu", "ts"),
    partitioned=True,
    made=True,
)

OF_TELEMETRY = {*TELEMETRY.names, *(part.name for column in TELEMETRY.columns for part in of_a_minute(column))}
"""Columns of `latest` and `telemetry_minutes` that follow from those of `telemetry`."""

TABLES: tuple[Table, ...] = (
    GPUS, TELEMETRY, CAMPAIGNS, RUNS, RESULTS, EVENTS, JOBS, IMPORTS, JUDGEMENTS, VERDICTS, FINGERPRINTS, TRUTH,
    SPANS, LATEST, MINUTES,
)  # fmt: skip

# -- bookkeeping: no tables for people -----------------------------------------------------------------------

LATE = Table(
    "late",
    "a row of telemetry that takes the place of an earlier one",
    (*TELEMETRY.columns, _WRITTEN),
    sorted_by=("gpu", "ts"),
    made=True,
)

REPLACED = Table(
    "replaced",
    "a file that is replaced by others, or one of these others: see store/rows/replacing.py",
    (
        Column("table_name", "VARCHAR", "", "the table, or `journal`"),
        Column("file", "VARCHAR", "", "folder and name"),
        Column("side", "VARCHAR", "", "'old' or 'new'"),
        Column("hidden", "BOOLEAN", "", "whether readers ignore it"),
        Column("step", "INTEGER", "", "1 before the switch, 2 after it"),
        Column("path", "VARCHAR", "", "path within the store"),
    ),
    made=True,
)

BOOKKEEPING: tuple[Table, ...] = (LATE, REPLACED)


def table(name: str) -> Table:
    """The table called `name`. Raises StoreError where there is none."""
    if name not in _BY_NAME:
        raise StoreError(f"there is no table {name!r}; the tables are {', '.join(t.name for t in TABLES)}")
    return _BY_NAME[name]


_BY_NAME = {t.name: t for t in (*TABLES, *BOOKKEEPING)}


@functools.cache
def arrow_schema(name: str) -> pa.Schema:
    """The Arrow schema of the table called `name`, with its name and format in the metadata."""
    import pyarrow as pa

    types = {
        "VARCHAR": pa.string(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP_NS": pa.timestamp("ns"),
    }
    fields = [pa.field(c.name, types[c.type]) for c in table(name).columns]
    return pa.schema(fields, metadata={"whorl.table": name, "whorl.format": str(FORMAT)})


def arrow_rows(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Rows of the table called `name`, from some of its columns: anything that Arrow makes an array of."""
    import pyarrow as pa

    schema = arrow_schema(name)
    return pa.table({key: pa.array(values, schema.field(key).type) for key, values in columns.items()})
