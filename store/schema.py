"""Every table and column of a store, with type, unit and meaning, written once.

The views, the checks, `whorl schema` and `docs/tables.md` are all made from `TABLES`.
A type is spelled as DuckDB spells it; `arrow_schema` gives the Arrow one. What GPUs' drivers give stands in `metrics`.
Whole numbers are BIGINT, so that no sum wraps; times are TIMESTAMP: microseconds, UTC, without a zone. A list of texts
is VARCHAR[], a record STRUCT, and what has keys that nobody can list beforehand is MAP.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import StoreError
from .metrics import METRICS
from .vocabulary import CLOCK_EVENTS, CONDITIONS

if TYPE_CHECKING:
    import pyarrow as pa

_SHORT = 300  # characters of a type
_HARDLY_REPEATED = {"mW", "mJ", "degC", "B/s", "us", "ns"}  # units


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, type as DuckDB spells it, unit ("" where none applies) and meaning."""

    name: str
    type: str
    unit: str
    description: str
    kind: Literal["", "gauge", "counter", "mask", "text"] = ""  # for telemetry: how a minute keeps it ("": not at all)
    added: bool = False  # files that were written before there was this column lack it: it is NULL in them
    grown: bool = False  # the same of some of its fields

    @property
    def encoding(self) -> str:
        """Its encoding in Parquet where that is not a dictionary: whole numbers with many values are written as
        differences, which every engine reads; fractions that hardly repeat as they are."""
        if self.type == "FLOAT" or (self.type == "DOUBLE" and self.unit == "J"):
            return "PLAIN"
        hardly_repeated = self.type == "BIGINT" and (self.kind == "counter" or self.unit in _HARDLY_REPEATED)
        return "DELTA_BINARY_PACKED" if hardly_repeated or self.type == "TIMESTAMP" else ""

    @property
    def short_type(self) -> str:
        """The type for people: without the fields of a record that has many."""
        return self.type if len(self.type) <= _SHORT else "STRUCT(...)"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, its columns, and the columns by which its files are sorted."""

    name: str
    row: str
    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()  # columns that say in a merge whether rows are stored; none: a row is its own key
    last_of: tuple[
        str, ...
    ] = ()  # of rows that are alike in these columns files keep the last in the order of the table
    partitioned: bool = False  # files lie in day=YYYY-MM-DD folders, by `ts`
    made: bool = False  # whorl makes its rows from other tables; nobody else appends to it
    added: bool = False  # stores that were made before there was this table lack its folder

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def nothing(self) -> str:
        """SQL: no row, of its columns."""
        columns = ", ".join(f'NULL::{column.type} AS "{column.name}"' for column in self.columns)
        return f"SELECT {columns} WHERE false"


@dataclass(frozen=True, slots=True)
class View:
    """A query over tables that is named in every store; `sql` selects from tables by name.

    `made`: the columns that no table has.
    """

    name: str
    row: str
    sql: str
    made: tuple[Column, ...] = ()


def record(fields: Mapping[str, str]) -> str:
    """The type of a record, from the types of its fields by name."""
    parts = (f'"{name}" {kind}' if name in _KEYWORDS else f"{name} {kind}" for name, kind in fields.items())
    return f"STRUCT({', '.join(parts)})"


_KEYWORDS = frozenset({"at", "each", "input", "level", "load", "name", "precision", "values"})
"""Names of fields that SQL knows as words of its own: DuckDB writes them in quotes."""

CLUSTER = Column("cluster", "VARCHAR", "", "name of the cluster, as given at import or in the configuration")
IMPORT = Column("import_id", "VARCHAR", "", "the row of `imports` this came from; NULL where whorl measured it")


# The number in `store.toml` and in every file's metadata: 4, or with a part "4.1". It grows when an older whorl would
# misunderstand a file. Formats 1 to 3 were never released.
FORMAT = 4
# The generation of columns in `store.toml`: one more where columns are `added`. The files of a store with this number
# have all columns, which readers of many files need not look for.
COLUMNS = 5


@dataclass(frozen=True)
class Upgrade:
    """How the files of one format become those of the next.

    `names`: of each table, the new names of columns that have other ones; None for a column that goes. `convert`: of a
    table, what makes its rows of rows whose columns have their new names. A column that is new is else NULL.
    """

    older: str
    newer: str
    names: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    convert: Mapping[str, Callable[[pa.Table], pa.Table]] = field(default_factory=dict)

    def rows(self, name: str, rows: pa.Table) -> pa.Table:
        """The rows of a table in the newer format."""
        names = self.names.get(name, {})
        rows = rows.select([column for column in rows.column_names if names.get(column, column) is not None])
        renamed = rows.rename_columns([names.get(column) or column for column in rows.column_names])
        return self.convert[name](renamed) if name in self.convert else renamed


UPGRADES: tuple[Upgrade, ...] = ()
"""One for each format of the store before the present one, see `upgrade`."""


def upgrades(version: str) -> list[Upgrade]:
    """What brings files of this format to the present one, in order; nothing where nothing does."""
    steps: list[Upgrade] = []
    while (step := next((step for step in UPGRADES if step.older == version), None)) is not None:
        steps.append(step)
        version = step.newer
    return steps


def other_format(version: str, *, older: bool = False) -> str | None:
    """Why this whorl does not read what has this format number; None if it does.

    `older`: it also reads what it can upgrade.
    """
    if version == str(FORMAT) or (older and upgrades(version)):
        return None
    if upgrades(version):
        return f"it has format {version}; `whorl store upgrade` brings it to format {FORMAT}"
    if (number := _number(version)) and number < _number(str(FORMAT)):
        return f"it has format {version}, from before the first release of whorl: import or measure again"
    return f"it has format {version or '?'} but this whorl reads format {FORMAT}; install a newer whorl"


def is_later(version: str) -> bool:
    """Whether this is the number of a format that comes after the present one."""
    return _number(version) > _number(str(FORMAT))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", version) else ()


SOFTWARE = (
    "whorl", "kernel", "driver", "cuda_driver", "cuda_runtime", "nvrtc", "cublas", "cupy", "simulation",
)  # fmt: skip
"""The fields of `runs.versions`."""

_CONDITIONS = record({condition.name: condition.type for condition in CONDITIONS})
_SECONDS_BY_REASON = record({reason.name: "DOUBLE" for reason in CLOCK_EVENTS})

CATALOG = "whorl.duckdb"  # the file of views and macros


_GPU = Column("gpu", "VARCHAR", "", "the GPU: its UUID, else its place (cabinet-node-device), else its name")
_WORKLOAD = Column("workload", "VARCHAR", "", "what ran: the application of an imported file or a probe's name")

# fmt: off
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
        Column("slot", "BIGINT", "", "position of the GPU within its node"),
        Column("model", "VARCHAR", "", "product name"),
        Column("serial", "VARCHAR", "", "board serial number"),
        Column("vbios", "VARCHAR", "", "firmware version"),
        Column("inforom", "VARCHAR", "", "version of the image of the board's own record (InfoROM)", added=True),
        Column("gsp_firmware", "VARCHAR", "", "firmware version of the GPU's system processor (GSP)", added=True),
        Column("driver", "VARCHAR", "", "driver version"),
        Column("pci_bus_id", "VARCHAR", "", "PCI address"),
        Column("nvml_index", "BIGINT", "", "index in the driver at that time; never a key"),
        Column("power_limit_mw", "BIGINT", "mW", "enforced power limit"),
        Column("power_limit_default_mw", "BIGINT", "mW", "power limit as delivered"),
        Column("power_limit_min_mw", "BIGINT", "mW", "lowest power limit that can be set"),
        Column("power_limit_max_mw", "BIGINT", "mW", "highest power limit that can be set"),
        Column("sm_clock_max_mhz", "BIGINT", "MHz", "maximum SM clock"),
        Column("mem_clock_max_mhz", "BIGINT", "MHz", "maximum memory clock"),
        Column("temperature_max_operating_c", "BIGINT", "degC", "highest GPU temperature in operation"),
        Column("temperature_slowdown_c", "BIGINT", "degC", "GPU temperature from which the hardware slows the clock"),
        Column("temperature_shutdown_c", "BIGINT", "degC", "GPU temperature at which it shuts down"),
        Column("memory_total", "BIGINT", "B", "device memory"),
        Column("parent", "VARCHAR", "", "of a MIG instance: the UUID of the physical GPU; NULL for a whole GPU"),
        Column("mig_profile", "VARCHAR", "", "of a MIG instance: its profile, as 1g.10gb; NULL for a whole GPU"),
        Column("first_seen", "TIMESTAMP", "UTC",
               "when this identity was seen first, or first again after another; NULL where unknown"),
        IMPORT,
    ),
    sorted_by=("cluster", "gpu"),
)

TELEMETRY = Table(
    "telemetry",
    "the metrics of a GPU at one time",
    (
        Column("ts", "TIMESTAMP", "UTC", "when the reading was taken"),
        CLUSTER,
        _GPU,
        *(Column(m.name, "BIGINT", m.unit, m.description, m.kind, m.added) for m in METRICS),
        Column("read_us", "BIGINT", "us", "how long the driver took to answer for this GPU", kind="gauge"),
        Column("quality", "VARCHAR", "", "what is wrong with this row's sensors; NULL where nothing is known",
               kind="text"),
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
        Column("asked", "MAP(VARCHAR, VARCHAR)", "",
               "what was asked for, by argument; of an argument that has parts, each part as argument.part"),
        Column("probes", "VARCHAR[]", "", "names of the probes that were asked for; NULL: it has none"),
        Column("fleet", "VARCHAR", "", "of a simulated fleet: its identity, the same in all its campaigns"),
        Column("born", "TIMESTAMP", "UTC", "of a simulated fleet: when it was new; its age counts from here"),
        Column("gpus", "BIGINT", "", "number of GPUs"),
        Column("began", "TIMESTAMP", "UTC", "when it began"),
        Column("stored_to", "TIMESTAMP", "UTC",
               "everything before this time is stored; `began` if nothing is stored yet"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended, or will end; NULL while unknown"),
    ),
    sorted_by=("cluster", "campaign", "stored_to"),
    key=("cluster", "campaign", "stored_to"),
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
        Column("began", "TIMESTAMP", "UTC", "when it began; NULL where unknown"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended; NULL where unknown"),
        Column("sm_clock_mhz", "DOUBLE", "MHz", "median SM clock while it ran"),
        Column("mem_clock_mhz", "DOUBLE", "MHz", "median memory clock while it ran"),
        Column("temperature_c", "DOUBLE", "degC", "median GPU temperature while it ran"),
        Column("power_w", "DOUBLE", "W", "median board power while it ran"),
        Column("conditions", _CONDITIONS, "", "the stated conditions: input size, warm-up, kernel",
               grown=any(condition.added for condition in CONDITIONS)),
        Column("probe_version", "VARCHAR", "", "version of the probe; NULL where it was imported"),
        Column("versions", record(dict.fromkeys(SOFTWARE, "VARCHAR")), "",
               "versions of software and driver; NULL where it was imported"),
        Column("clock_events", _SECONDS_BY_REASON, "s", "how long the clock was held down while it ran, by reason"),
        Column("ended_by", "VARCHAR", "",
               "why it ended: 'precise', 'time limit', 'most repeats', 'complete' (its length is fixed) or 'failed' "
               "(no figures); NULL where it was imported"),
        Column("status", "VARCHAR", "", "how it came out, a code: 'ok', else why not to trust it"),
        Column("status_detail", "VARCHAR", "", "the same in a sentence; NULL where it is 'ok'"),
        IMPORT,
    ),
    sorted_by=("cluster", "workload", "gpu", "began"),
    key=("run_id",),
)

RESULTS = Table(
    "results",
    "one figure of one run",
    (
        Column("run_id", "VARCHAR", "", "the run of `runs`"),
        CLUSTER,
        _WORKLOAD,
        _GPU,
        Column("repeat", "BIGINT", "", "which repeat of the run, from 0"),
        Column("figure", "VARCHAR", "", "name of the figure; 'time' is the duration that variability is of"),
        Column("unit", "VARCHAR", "", "unit of `value`; times are in ms"),
        Column("value", "DOUBLE", "`unit`", "the figure"),
    ),
    sorted_by=("cluster", "workload", "gpu"),
    key=("run_id",),
)

EVENTS = Table(
    "events",
    "something that happened to a GPU",
    (
        Column("ts", "TIMESTAMP", "UTC", "when it happened or was noticed"),
        CLUSTER,
        Column("gpu", "VARCHAR", "",
               "the GPU, as in `gpus`; NULL of what concerns no single GPU, and where the store does not know which "
               "GPU is at `pci_bus_id` of the node"),
        Column("node", "VARCHAR", "", "the host"),
        Column("pci_bus_id", "VARCHAR", "", "PCI address of the GPU on its node; NULL where unknown", added=True),
        Column("kind", "VARCHAR", "", "what kind of event, a code; it says which of the next columns are filled"),
        Column("workload", "VARCHAR", "", "the probe that it is about"),
        Column("metric", "VARCHAR", "", "the column of `telemetry` that it is about"),
        Column("quality", "VARCHAR", "", "the mark of `telemetry.quality` that it is about"),
        Column("code", "BIGINT", "", "number of an error: of an XID, the driver's"),
        Column("before", "DOUBLE", "of `metric`", "what it was"),
        Column("value", "DOUBLE", "of `metric`", "what it is now; of a power sensor, mW"),
        Column("n", "BIGINT", "", "how many: ticks, wrong elements, MIG instances, XIDs"),
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
        Column("units", "STRUCT(column_name VARCHAR, unit VARCHAR, taken_from VARCHAR)[]", "",
               "the unit that was taken of each column, and from what it is known"),
        Column("options", "MAP(VARCHAR, VARCHAR)", "",
               "the options given; of one that is given for a column, as map.COLUMN and unit.COLUMN"),
        Column("notes", "VARCHAR[]", "", "what the importer noticed"),
        Column("importer", "VARCHAR", "", "version of the importer"),
        Column("imported_at", "TIMESTAMP", "UTC", "when"),
    ),
    key=("import_id", "workload"),
)

TRUTH = Table(
    "truth",
    "the fault planted in a simulated GPU: used to judge detectors, never read by analysis",
    (
        CLUSTER,
        _GPU,
        Column("kind", "VARCHAR", "", "the fault, or 'ok' for a healthy GPU"),
        Column("began", "TIMESTAMP", "UTC", "when the fault began; NULL where it was there from the start"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended; NULL where it did not"),
        Column("size_pct", "DOUBLE", "%", "how large the fault is; NULL for a kind without a size"),
        Column("population", "VARCHAR", "", "the population that the fleet was drawn from"),
        Column("silicon", "MAP(VARCHAR, DOUBLE)", "", "what was drawn for this GPU, by parameter"),
        Column("model", "VARCHAR", "", "the simulated model"),
        Column("seed", "BIGINT", "", "seed of the fleet"),
        Column("parameters", "VARCHAR", "", "version of the simulation's parameter set"),
    ),
    sorted_by=("cluster", "gpu"),
    key=("cluster", "gpu", "kind", "began", "population", "seed", "parameters"),
)

JOBS = Table(
    "jobs",
    "an allocation of a GPU to a job, or of a node where its GPUs are not known, as one import found it; an allocation "
    "that changed has the rows of a later import beside its old ones, and the view `jobs_now` has the newest",
    (
        CLUSTER,
        Column("allocation", "VARCHAR", "", "identity of the allocation; a job that was requeued has several"),
        Column("job_id", "VARCHAR", "", "the job, as scheduler commands take it: 4242, of an array 4242_7"),
        Column("raw_id", "VARCHAR", "", "the number that the job itself sees; joins with `runs.job_id`"),
        Column("restart", "BIGINT", "", "how often it was requeued before; NULL where unknown"),
        Column("user", "VARCHAR", "", "who; with anonymise= a pseudonym"),
        Column("account", "VARCHAR", "", "the account that pays; with anonymise= a pseudonym"),
        Column("partition", "VARCHAR", "", "partition or queue"),
        Column("qos", "VARCHAR", "", "quality of service"),
        Column("state", "VARCHAR", "", "the scheduler's state, as COMPLETED; of tags: RUNNING, ENDED, LOST"),
        Column("exit_code", "BIGINT", "", "exit status of the job; NULL while it runs"),
        Column("exit_signal", "BIGINT", "", "the signal that ended it; 0: none"),
        Column("submitted", "TIMESTAMP", "UTC", "when it was submitted, or requeued"),
        Column("eligible", "TIMESTAMP", "UTC", "when it could have begun; it waited from then to `began`"),
        Column("began", "TIMESTAMP", "UTC", "when it began"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended; NULL while it runs, or if that is not known"),
        Column("node", "VARCHAR", "", "the node"),
        Column("gpu", "VARCHAR", "", "the GPU or MIG instance, as in `gpus`; NULL where not known"),
        Column("gpu_from", "VARCHAR", "", "how the GPU is known, a code; NULL where it is not"),
        Column("gpu_type", "VARCHAR", "", "the type that was allocated, in the scheduler's words: v100, 1g.10gb"),
        Column("share", "DOUBLE", "", "which part of the GPU it had: 1 is all; NULL where unknown (shards, MPS)"),
        Column("node_gpus", "BIGINT", "", "how many GPUs of the node this row is: 1 if `gpu` is known; NULL: unknown"),
        Column("job_gpus", "BIGINT", "", "how many GPUs the whole job had"),
        Column("job_nodes", "BIGINT", "", "how many nodes the whole job had"),
        Column("time_limit_s", "BIGINT", "s", "the longest it may run; NULL: no limit, or unknown"),
        Column("requested", "VARCHAR", "", "what it asked for, in the scheduler's words (ReqTRES)"),
        Column("allocated", "VARCHAR", "", "what it got, in the scheduler's words (AllocTRES)"),
        Column("job_energy_j", "BIGINT", "J",
               "energy of the whole job as the scheduler counted it, which jobs on one node count twice; NULL: none, "
               "or 0"),
        Column("tag", "VARCHAR", "", "`allocation` of the tag that gave the GPU; `jobs_now` leaves that tag out"),
        Column("source", "VARCHAR", "", "where the row comes from, a code"),
        Column("recorded", "TIMESTAMP", "UTC", "when it was stored; of an allocation's records the newest counts"),
        IMPORT,
    ),
    sorted_by=("gpu", "began"),
    key=("cluster", "allocation", "recorded"),
)

SPANS = Table(
    "spans",
    "a span that ended: a part of an application's work, and the energy that its GPUs used for it",
    (
        CLUSTER,
        Column("span", "VARCHAR", "", "its identity, W3C Trace Context's span id: 16 hex digits"),
        Column("parent", "VARCHAR", "", "the span that it is inside of, which may be of another process; NULL: none"),
        Column("within_parent", "BOOLEAN", "", "whether energy_j, low_j and high_j of the parent's row include it"),
        Column("name", "VARCHAR", "", "its name"),
        Column("attributes", "MAP(VARCHAR, VARCHAR)", "",
               "what else the application said of it, by name; NULL: nothing"),
        Column("job_id", "VARCHAR", "", "the batch job; NULL outside of one"),
        Column("node", "VARCHAR", "", "the host"),
        Column("gpus", "VARCHAR[]", "", "the GPUs, as in `gpus`; NULL where none could be read"),
        Column("began", "TIMESTAMP", "UTC", "when it began"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended"),
        Column("own_j", "DOUBLE", "J",
               "what it used itself, outside the spans inside it; those of all spans add up. Alone, that of a short "
               "span says little: see low_j and high_j. NULL where nothing was read"),
        Column("energy_j", "DOUBLE", "J", "what it and the spans inside it used; NULL where `reason` says why"),
        Column("low_j", "DOUBLE", "J", "lower end of its 95 % interval"),
        Column("high_j", "DOUBLE", "J", "upper end of it"),
        Column("measured", "DOUBLE", "", "share of its time in which the GPUs were read"),
        Column("method", "VARCHAR", "", "what most of it was read from: 'counter' or 'power'"),
        Column("reason", "VARCHAR", "", "why energy_j is NULL, a code: 'no gpu', 'mostly gaps', 'too short', ..."),
        Column("error", "VARCHAR", "", "class of the exception that ended it; NULL where none did"),
        Column("trace_id", "VARCHAR", "",
               "the trace that it is of, over processes and nodes: W3C Trace Context's, 32 hex digits", added=True),
        Column("process", "VARCHAR", "", "the ledger that counted it: spans of one never count energy twice",
               added=True),
    ),
    sorted_by=("cluster", "began"),
    key=("cluster", "span"),
)

SPANS_OPEN = Table(
    "spans_open",
    "what a span that had not ended had used until `ended`, written every few seconds: what is left of the spans of a "
    "process that was killed. The view `spans_now` has each span once",
    SPANS.columns,
    sorted_by=("cluster", "span", "ended"),
    key=("cluster", "span", "ended"),
    last_of=("cluster", "span"),
    added=True,
)

OPERATIONS = Table(
    "operations",
    "an operation of a rank of a training job: a part of a step, such as the forward pass of a microbatch",
    (
        CLUSTER,
        Column("job", "VARCHAR", "", "the training job: what `job` says, else its layout file, else the file's name"),
        Column("rank", "BIGINT", "", "the rank that it is of"),
        Column("dp_rank", "BIGINT", "", "its place in data parallelism: which data it works on; NULL where unknown"),
        Column("stage", "BIGINT", "", "its stage of the pipeline: which layers it computes; NULL where unknown"),
        Column("tp_size", "BIGINT", "",
               "how many ranks compute each layer together (tensor parallelism), of which one may be recorded for all; "
               "NULL where unknown"),
        Column("gpu", "VARCHAR", "", "the GPU of the rank, as in `gpus`; NULL where nobody said it"),
        Column("step", "BIGINT", "", "number of the training step"),
        Column("optype", "VARCHAR", "", "what it is, in the words of the file: 'forward-compute', 'forward-send', ..."),
        Column("model_chunk", "BIGINT", "",
               "which of the rank's parts of the model (interleaved pipeline); NULL where it is of none"),
        Column("microbatch", "BIGINT", "", "which microbatch of the step; NULL where it is of none"),
        Column("began_s", "DOUBLE", "s", "when it began, by the file's own clock; NULL where unknown"),
        Column("duration_s", "DOUBLE", "s", "how long it lasted"),
        IMPORT,
    ),
    sorted_by=("cluster", "job", "optype", "rank", "step"),
    added=True,
)

NODE_POWER = Table(
    "node_power",
    "power or energy of a node, or of a part of it, as a meter outside the GPUs had it at one time",
    (
        CLUSTER,
        Column("node", "VARCHAR", "", "the host, as in `gpus`"),
        Column("ts", "TIMESTAMP", "UTC", "when it was read"),
        Column("source", "VARCHAR", "", "what measured it, a code"),
        Column("covers", "VARCHAR", "", "what it is the power of, a code"),
        Column("part", "VARCHAR", "",
               "which of several that `covers` names, as a CPU package, a power supply or an outlet: the whole is "
               "the sum of its parts; NULL: all of it"),
        Column("power_mw", "BIGINT", "mW", "power; NULL where the meter counts energy only"),
        Column("window_ms", "BIGINT", "ms",
               "the power is the mean of so long a time before `ts`; NULL where the meter does not say"),
        Column("energy_mj", "BIGINT", "mJ",
               "counter of energy: the difference of two rows is the energy between them; it falls where the counter "
               "began anew; NULL where there is none"),
        IMPORT,
    ),
    sorted_by=("cluster", "node", "ts"),
    key=("cluster", "node", "ts", "source", "covers", "part"),
    added=True,
)

# -- what whorl concluded -------------------------------------------------------------------------------------

_JUDGEMENT = Column("judgement", "VARCHAR", "", "the row of `judgements`")
_VERSION_OF = Column("version", "VARCHAR", "", "version of whorl")
_MEASURED = (
    'STRUCT(figure VARCHAR, "value" DOUBLE, peers DOUBLE, unit VARCHAR, "limit" DOUBLE, n BIGINT, "at" TIMESTAMP, '
    '"text" VARCHAR, text_before VARCHAR)[]'
)

_FINDING = (
    Column("place", "BIGINT", "", "its place in the judgement, from 0; the worst comes first"),
    Column("level", "VARCHAR", "", "'gpu', 'rank', 'node', 'batch' or 'slot'"),
    Column("name", "VARCHAR", "", "of the GPU (`node/slot` where known), the node, or what the batch shares"),
    Column("gpus", 'STRUCT("name" VARCHAR, gpu VARCHAR)[]', "",
           "the GPUs that it covers: the name, and `gpu` (the UUID), which stays when a card moves"),
    Column("model", "VARCHAR", "", "product name; NULL where it covers several or none is known"),
    Column("workloads", "VARCHAR[]", "", "in which it shows, the largest effect first"),
    Column("kind", "VARCHAR", "", "what it says, a code: 'slow', 'hot', 'lost', ..."),
    Column("state", "VARCHAR", "", "'suspected': seen in one sitting; 'confirmed': in two or more"),
    Column("effect_pct", "DOUBLE", "%", "in the first of `workloads`, of the peers' level; slower is positive"),
    Column("low_pct", "DOUBLE", "%", "lower end of the 95 % interval of the level in another sitting"),
    Column("high_pct", "DOUBLE", "%", "upper end of it"),
    Column("p", "DOUBLE", "", "chance that a healthy one shows this"),
    Column("q", "DOUBLE", "", "share of false findings among those that are at least as clear"),
    Column("n", "BIGINT", "", "GPUs, or nodes where nodes are compared, itself included; `reference` says which"),
    Column("causes", "STRUCT(what VARCHAR, pct DOUBLE, low_pct DOUBLE, high_pct DOUBLE)[]", "",
           "parts of the effect, with the 95 % interval of each"),
    Column("first_seen", "TIMESTAMP", "UTC", "when the first run that shows it began"),
    Column("last_seen", "TIMESTAMP", "UTC", "when the last one began"),
    Column("runs", "VARCHAR[]", "", "`run_id` of the runs that show it"),
    Column("action", "VARCHAR", "", "what to do, a code: 'clean cooling', 'reset clock', ..."),
    Column("reference", "VARCHAR", "", "what it was compared with, a code: 'gpus', 'nodes', or 'past', its own"),
    Column("figure", "VARCHAR", "",
           "what the effect is of, a code: 'time', 'temperature rise', 'highest clock', ...; of 'throttled runs' "
           "it is in percentage points; '' of what was seen and not measured"),
    Column("measured", _MEASURED, "", "the numbers that tell it: clock, power, temperature, XIDs, dates, ...; "
           "`peers`: that of the peers, or, where `reference` is 'past', that before", added=True),
    Column("at_clock", "BOOLEAN", "", "whether times were compared as they would be at the clock of the peers",
           added=True),
)

JUDGEMENTS = Table(
    "judgements",
    "a time at which the GPUs of a cluster were judged: what was looked at, and what could not be judged",
    (
        Column("judgement", "VARCHAR", "", "its identity"),
        CLUSTER,
        Column("campaign", "VARCHAR", "", "the campaign that it is about; NULL: every run of the cluster"),
        Column("since", "TIMESTAMP", "UTC", "runs before this time were left out; NULL: none"),
        Column("judged_at", "TIMESTAMP", "UTC", "when"),
        _VERSION_OF,
        Column("gpus", "BIGINT", "", "how many GPUs were judged"),
        Column("looks", "BIGINT", "", "how many comparisons were made"),
        Column("findings", "BIGINT", "", "how many rows of `verdicts` it has; 0 is an answer too"),
        Column("watch", "VARCHAR[]", "", "names of GPUs to measure again: newly slower than their own past"),
        Column("runs", "BIGINT", "", "how many runs the cluster had"),
        Column("content", "VARCHAR", "", "hash of what was concluded: the same again is not stored again"),
        Column("not_judged", "STRUCT(subject VARCHAR, why VARCHAR)[]", "",
               "as `unjudged`, in sentences; NULL where `unjudged` is known"),
        Column("changes",
               "STRUCT(gpu VARCHAR, workload VARCHAR, effect_pct DOUBLE, low_pct DOUBLE, high_pct DOUBLE, q DOUBLE, "
               'n BIGINT, since TIMESTAMP, "at" TIMESTAMP, state VARCHAR, together BIGINT, joined_with VARCHAR[])[]',
               "", "as `level_changes`, in words; NULL where `level_changes` is known"),
        Column("unjudged",
               'STRUCT(subject VARCHAR, why VARCHAR, n BIGINT, total BIGINT, "share" DOUBLE, since TIMESTAMP, '
               '"at" TIMESTAMP, model VARCHAR, "level" VARCHAR)[]',
               "", "what was not judged, and why, a code with its numbers", added=True),
        Column("level_changes",
               "STRUCT(gpu VARCHAR, workload VARCHAR, effect_pct DOUBLE, low_pct DOUBLE, high_pct DOUBLE, q DOUBLE, "
               'n BIGINT, since TIMESTAMP, "at" TIMESTAMP, state VARCHAR, together BIGINT, '
               f"joined_with {_MEASURED})[]",
               "", "times at which the level of a GPU changed: between `since` and `at`, for better or worse",
               added=True),
        Column("smallest",
               "STRUCT(workload VARCHAR, model VARCHAR, pct DOUBLE, any_clock_pct DOUBLE, gpus BIGINT, "
               "sittings BIGINT, why VARCHAR)[]",
               "", "by workload, the smallest effect that could have been named", added=True),
        Column("levels", "BIGINT", "", "how many rows of `levels` it has; NULL: it was stored without them",
               added=True),
        Column("facts", "BIGINT", "", "how many events that need no run, and operations of training jobs, there were",
               added=True),
        Column("ranks", "BIGINT", "", "how many ranks of training jobs were judged", added=True),
        Column("watched", f"{record({column.name: column.type for column in _FINDING})}[]", "",
               "findings about the GPUs of `watch`, with the columns of `verdicts`", added=True),
    ),
    sorted_by=("cluster", "judged_at"),
    key=("judgement",),
)

VERDICTS = Table(
    "verdicts",
    "a finding of a judgement about a GPU, a rank, a node or a batch; nothing is changed later: a new judgement adds "
    "its own",
    (
        _JUDGEMENT,
        CLUSTER,
        Column("judged_at", "TIMESTAMP", "UTC", "when"),
        _VERSION_OF,
        *_FINDING,
        Column("looks", "VARCHAR", "", "the finding in a sentence; NULL where `measured` tells it"),
    ),
    sorted_by=("cluster", "judged_at", "place"),
    key=("judgement",),
)

LEVELS = Table(
    "levels",
    "the time of a GPU in a workload, as a judgement has it: its level and its peers'; one row for each GPU judged",
    (
        _JUDGEMENT,
        CLUSTER,
        Column("judged_at", "TIMESTAMP", "UTC", "when"),
        _GPU,
        Column("model", "VARCHAR", "", "product name"),
        Column("workload", "VARCHAR", "", "the workload"),
        Column("time_ms", "DOUBLE", "ms", "median over the GPU's sittings, without what a day did to all"),
        Column("low_ms", "DOUBLE", "ms", "lower end of the 95 % interval of the time in another sitting"),
        Column("high_ms", "DOUBLE", "ms", "upper end of it; NULL where no GPU has two runs"),
        Column("ratio", "DOUBLE", "", "`time_ms` over that of the peers; NULL without peers"),
        Column("ratio_low", "DOUBLE", "", "lower end of its interval, as of `low_ms`"),
        Column("ratio_high", "DOUBLE", "", "upper end of it"),
        Column("rank", "BIGINT", "", "its place among the peers, from 1, the fastest"),
        Column("rank_low", "BIGINT", "", "the lowest rank that it may have in another sitting"),
        Column("rank_high", "BIGINT", "", "the highest one"),
        Column("peers", "BIGINT", "", "how many GPUs were compared, itself included"),
        Column("n", "BIGINT", "", "its runs"),
        Column("sittings", "BIGINT", "", "its sittings: runs without a pause of 6 hours or more"),
        Column("within_pct", "DOUBLE", "%", "standard deviation of its runs within sittings; NULL without two in one"),
        Column("within_freedom", "BIGINT", "", "degrees of freedom of `within_pct`"),
        Column("between_pct", "DOUBLE", "%", "standard deviation of its sittings, with `sittings` - 1 degrees"),
    ),
    sorted_by=("cluster", "judged_at", "gpu"),
    key=("judgement",),
    added=True,
)

DAY_LEVELS = Table(
    "day_levels",
    "what was usual on a day, as a judgement has it: quantiles of the times of all GPUs of a model in a workload",
    (
        _JUDGEMENT,
        CLUSTER,
        Column("judged_at", "TIMESTAMP", "UTC", "when"),
        Column("workload", "VARCHAR", "", "the workload"),
        Column("model", "VARCHAR", "", "product name"),
        Column("day", "TIMESTAMP", "UTC", "midnight of the day on which these sittings began"),
        Column("gpus", "BIGINT", "", "how many GPUs were measured on it"),
        Column("time_5_ms", "DOUBLE", "ms", "5 % of their sittings were faster"),
        Column("time_25_ms", "DOUBLE", "ms", "25 % were faster"),
        Column("time_50_ms", "DOUBLE", "ms", "the median"),
        Column("time_75_ms", "DOUBLE", "ms", "75 % were faster"),
        Column("time_95_ms", "DOUBLE", "ms", "95 % were faster"),
    ),
    sorted_by=("cluster", "judged_at", "workload", "day"),
    key=("judgement",),
    added=True,
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
        Column("rank", "BIGINT", "", "its place among the peers by `value`, from 1, the lowest first"),
        Column("peers", "BIGINT", "", "how many GPUs were compared, itself included"),
        Column("n", "BIGINT", "", "its runs"),
        Column("sittings", "BIGINT", "", "its sittings: runs without a pause of 6 hours or more"),
        _VERSION_OF,
        Column("made_at", "TIMESTAMP", "UTC", "when; the same for all rows of one fingerprint of a cluster"),
        Column("evidence", "VARCHAR[]", "", "`run_id` of the newest runs behind it, 20 at most"),
    ),
    sorted_by=("cluster", "gpu", "made_at"),
    key=("cluster", "gpu", "made_at"),
)

CALIBRATIONS = Table(
    "calibrations",
    "what the power sensor of a GPU is wrong by, as learnt from the power of its node: true power is (1 + h) x read "
    "power + p; a new calibration stands beside the earlier ones",
    (
        CLUSTER,
        _GPU,
        Column("node", "VARCHAR", "", "the host whose power was known"),
        Column("model", "VARCHAR", "", "product name; NULL where unknown"),
        Column("made_at", "TIMESTAMP", "UTC", "when; the same for all rows of one calibration"),
        Column("since", "TIMESTAMP", "UTC", "when the first of its windows began"),
        Column("until", "TIMESTAMP", "UTC", "when the last ended"),
        Column("source", "VARCHAR", "", "what measured the node, a code as in `node_power`"),
        Column("windows", "BIGINT", "", "windows of time in which the power of the node and of all its GPUs was known"),
        Column("h", "DOUBLE", "", "to be added to 1 for the gain"),
        Column("p", "DOUBLE", "W", "to be added to the power"),
        Column("hh", "DOUBLE", "", "variance of h, of what is this board's alone; 1.96 deviations are 95 %"),
        Column("hp", "DOUBLE", "W", "covariance of h and p, as of `hh`"),
        Column("pp", "DOUBLE", "W^2", "variance of p, as of `hh`"),
        Column("shared", "STRUCT(factor VARCHAR, h DOUBLE, p DOUBLE)[]", "",
               "what boards are wrong by together, as the gain of the node's meter: how far h and p move for one "
               "standard deviation of a factor; factors are independent"),
        Column("learnt", "DOUBLE", "", "the part of the variance of h, beside the other boards of the node, that went"),
        Column("finding", "VARCHAR", "", "what to know of it, a code"),
        _VERSION_OF,
    ),
    sorted_by=("cluster", "gpu", "made_at"),
    key=("cluster", "gpu", "made_at"),
    added=True,
)
# fmt: on

# -- made from telemetry ------------------------------------------------------------------------------------

_WRITTEN = Column("written", "BIGINT", "ns", "when the row was stored, since 1970")

LATEST = Table(
    "latest",
    "the last reading of a GPU, however long ago",
    (*TELEMETRY.columns, _WRITTEN),
    sorted_by=("gpu", "ts"),
    made=True,
)


def of_a_minute(column: Column) -> tuple[Column, ...]:
    name, meaning, unit, added = column.name, column.description, column.unit, column.added
    match column.kind:
        case "gauge":
            return (
                Column(f"{name}_min", column.type, unit, f"lowest in the minute: {meaning}", added=added),
                Column(f"{name}_mean", "DOUBLE", unit, f"mean over the minute's rows: {meaning}", added=added),
                Column(f"{name}_max", column.type, unit, f"highest in the minute: {meaning}", added=added),
            )
        case "counter":
            return (
                Column(f"{name}_first", column.type, unit, f"first in the minute: {meaning}", "counter", added),
                Column(f"{name}_last", column.type, unit, f"last in the minute: {meaning}", "counter", added),
            )
        case "mask":
            return (Column(name, column.type, unit, f"every bit set in the minute: {meaning}", added=added),)
        case "text":
            return (Column(name, column.type, unit, f"any in the minute: {meaning}", added=added),)
    return ()


MINUTES = Table(
    "telemetry_minutes",
    "one minute of a GPU's pruned telemetry",
    (
        Column("ts", "TIMESTAMP", "UTC", "when the minute began"),
        CLUSTER,
        _GPU,
        Column("n", "BIGINT", "", "how many rows of telemetry it replaces; a late row of the minute makes another row"),
        *(part for column in TELEMETRY.columns for part in of_a_minute(column)),
    ),
    sorted_by=("gpu", "ts"),
    partitioned=True,
    made=True,
)

# fmt: off
ENERGY_MINUTES = Table(
    "energy_minutes",
    "the energy of a GPU in a minute; in a part of one where a job began or ended; without readings, in a longer time. "
    "`whorl store compact` makes them of a day that is over",
    (
        Column("ts", "TIMESTAMP", "UTC", "when it began; it ends where the next row of the GPU and day begins, the "
               "last one at `ended` of `energy_days`"),
        CLUSTER,
        _GPU,
        Column("energy_j", "DOUBLE", "J", "energy: best estimate"),
        Column("filled_j", "FLOAT", "J", "of it, what no sensor measured"),
        Column("unread_s", "FLOAT", "s", "how long nobody read the GPU"),
        Column("counter_s", "FLOAT", "s", "for how long the energy counter was used"),
        Column("stuck_s", "FLOAT", "s", "of `unread_s`, for how long the power sensor was stuck"),
        Column("zero_s", "FLOAT", "s", "of it, for how long it read 0 W"),
        Column("below_j", "FLOAT", "J", "how much less the energy could be: a bound, which adds up"),
        Column("above_j", "FLOAT", "J", "how much more"),
        Column("variance_j2", "FLOAT", "J2", "variance of what differs from reading to reading"),
        Column("alias_w2s", "FLOAT", "W2 s", "variance of power that a beat or a locked load hides, x time"),
        Column("alias_j2", "FLOAT", "J2", "that, x how long it stays the same"),
        Column("level_j", "FLOAT", "J", "energy at `ts` in the time that readings may lag by"),
        Column("lag_j", "FLOAT", "J", "how much energy the lag may move across `ts`, as power changes near it"),
        Column("doubt_j", "FLOAT", "J", "how much may lie on the other side, as `ts` is between two readings"),
        Column("swing_w", "FLOAT", "W", "the range of the power: how far it may be from its mean within the time"),
    ),
    sorted_by=("gpu", "ts"),
    partitioned=True,
    made=True,
    added=True,
)

ENERGY_DAYS = Table(
    "energy_days",
    "the meter of a GPU on a day: what is known of the whole day for its rows of `energy_minutes`",
    (
        Column("ts", "TIMESTAMP", "UTC", "when the day began"),
        CLUSTER,
        _GPU,
        Column("minutes", "BIGINT", "", "how many rows of `energy_minutes` it has"),
        Column("began", "TIMESTAMP", "UTC", "from when it was metered on this day"),
        Column("ended", "TIMESTAMP", "UTC", "to when"),
        Column("end_level_j", "DOUBLE", "J", "as `level_j` of `energy_minutes`, at `ended`"),
        Column("end_lag_j", "DOUBLE", "J", "as `lag_j`, at `ended`"),
        Column("end_doubt_j", "DOUBLE", "J", "as `doubt_j`, at `ended`"),
        Column("idle_w", "DOUBLE", "W", "what it drew without work; NULL where only bounds are known"),
        Column("idle_low_w", "DOUBLE", "W", "the least that it may be"),
        Column("idle_high_w", "DOUBLE", "W", "the most; NULL where nothing is known"),
        Column("idle_source", "VARCHAR", "", "what that is known from, a code"),
        Column("power_source", "VARCHAR", "", "which readings gave most of the energy, a code"),
        Column("limit_w", "DOUBLE", "W", "power limit; NULL where unknown"),
        Column("lowest_w", "DOUBLE", "W", "the least that it can draw, as far as is known"),
        Column("highest_w", "DOUBLE", "W", "the most"),
        Column("reason", "VARCHAR", "", "why it has no energy, a code; NULL where it has"),
        Column("notes",
               "STRUCT(problem VARCHAR, began TIMESTAMP, ended TIMESTAMP, joules DOUBLE, percent DOUBLE, "
               "seconds DOUBLE, n BIGINT, has_rows BOOLEAN)[]",
               "", "what went wrong in its readings, as `whorl energy reconcile` lists it"),
    ),
    sorted_by=("gpu", "ts"),
    partitioned=True,
    made=True,
    added=True,
)
# fmt: on

DERIVED: tuple[Table, ...] = (ENERGY_MINUTES, ENERGY_DAYS)
"""Tables that analysis makes of the telemetry of a day, and makes again where that changed."""

OF_TELEMETRY = {*TELEMETRY.names, *(part.name for column in TELEMETRY.columns for part in of_a_minute(column))}
"""Columns of `latest` and `telemetry_minutes` that follow from those of `telemetry`."""

TABLES: tuple[Table, ...] = (
    GPUS, TELEMETRY, CAMPAIGNS, RUNS, RESULTS, EVENTS, JOBS, IMPORTS, JUDGEMENTS, VERDICTS, LEVELS, DAY_LEVELS,
    FINGERPRINTS, CALIBRATIONS, TRUTH, SPANS, SPANS_OPEN, OPERATIONS, NODE_POWER, LATEST, MINUTES,
    *DERIVED,
)  # fmt: skip

KEY = ("cluster", "gpu", "ts")
"""What names a reading: of several rows of telemetry with one key, the row written last counts."""

# -- bookkeeping: no tables for people -----------------------------------------------------------------------

LATE = Table(
    "late",
    "a row of telemetry that takes the place of an earlier one",
    (*TELEMETRY.columns, _WRITTEN),
    sorted_by=("gpu", "ts"),
    partitioned=True,
    made=True,
)

REPLACED = Table(
    "replaced",
    "a file that readers leave out, by one note; the note with the highest number counts: see store/notes.py",
    (
        Column("number", "BIGINT", "", "number of the note"),
        Column("step", "BIGINT", "", "1 before the switch, 2 after it, 0 where nothing is replaced"),
        Column("file", "VARCHAR", "", "path within the store; '' in a note that hides nothing"),
        Column("hidden", "BOOLEAN", "", "whether readers leave it out"),
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

    fields = [pa.field(column.name, arrow_type(column.type)) for column in table(name).columns]
    return pa.schema(fields, metadata={"whorl.table": name, "whorl.format": str(FORMAT)})


def arrow_type(spelled: str) -> pa.DataType:
    """The Arrow type of a type that is spelled as DuckDB spells it."""
    import pyarrow as pa

    plain = {
        "VARCHAR": pa.string(),
        "BIGINT": pa.int64(),
        "DOUBLE": pa.float64(),
        "FLOAT": pa.float32(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us"),
    }
    if spelled in plain:
        return plain[spelled]
    if spelled.endswith("[]"):
        return pa.list_(arrow_type(spelled[:-2]))
    kind, _, inside = spelled.removesuffix(")").partition("(")
    parts = _PARTS.split(inside)
    if kind == "MAP":
        return pa.map_(*map(arrow_type, parts))
    assert kind == "STRUCT", f"no column has the type {spelled}"
    fields = [part.split(" ", maxsplit=1) for part in parts]
    return pa.struct([(name.strip('"'), arrow_type(of_field)) for name, of_field in fields])


_PARTS = re.compile(r", (?![^()]*\))")  # commas that are not within the brackets of a part


def arrow_rows(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Rows of the table called `name`, from some of its columns: anything that Arrow makes an array of."""
    import pyarrow as pa

    schema = arrow_schema(name)
    return pa.table({key: arrow_array(values, schema.field(key).type) for key, values in columns.items()})


def texts_of(values: Mapping[str, object]) -> dict[str, str | None]:
    """Values of any kind as a MAP column of texts holds them, by name.

    A text is as it is, a list its texts with commas, anything else as JSON writes it. Of a value that has parts with
    names, each part is a value: name.part.
    """
    texts: dict[str, str | None] = {}
    for name, value in sorted(values.items()):
        if isinstance(value, Mapping):
            texts |= texts_of({f"{name}.{part}": inside for part, inside in value.items()})
        elif value is None or isinstance(value, str):
            texts[name] = value
        elif isinstance(value, list | tuple):
            texts[name] = ", ".join(map(str, value))
        else:
            texts[name] = json.dumps(value, default=str)
    return texts


def arrow_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Values as an array of a column's type; of times, whole numbers are ns since 1970, and us are kept of them.

    Raises StoreError for a field that a record does not have: Arrow would drop it without a word.
    """
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind, safe=not pa.types.is_timestamp(kind))
    if pa.types.is_struct(kind):
        unknown = {name for row in values if row is not None for name in row} - {field.name for field in kind}
        if unknown:
            raise StoreError(f"a record has no field {', '.join(sorted(unknown))}; it has {', '.join(kind.names)}")
    if not pa.types.is_timestamp(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.timestamp("ns")).cast(kind, safe=False)
