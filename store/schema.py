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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import StoreError
from .metrics import METRICS
from .vocabulary import CLOCK_EVENTS, CONDITIONS, record

if TYPE_CHECKING:
    import pyarrow as pa


class Column(NamedTuple):
    """One column: its name, type as DuckDB spells it, unit ("" where none applies) and meaning."""

    name: str
    type: str
    unit: str
    description: str
    kind: Literal["", "gauge", "counter", "mask", "text"] = ""  # for telemetry: how a minute keeps it ("": not at all)
    added: bool = False  # files that were written before there was this column lack it: it is NULL in them
    grown: bool = False  # the same of some of its fields


class Table(NamedTuple):
    """One table: what a row is, its columns, and the columns by which its files are sorted."""

    name: str
    row: str
    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()  # columns that say in a merge whether rows are stored; none: a row is its own key
    last_of: tuple[str, ...] = ()  # of rows that are alike in these columns files keep the last one
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


def _column(spelled: str, name: str, description: str, unit: str = "", **more: Any) -> Column:
    return Column(name, spelled, unit, description, **more)


_text, _whole, _real, _small, _map = (
    functools.partial(_column, kind) for kind in ("VARCHAR", "BIGINT", "DOUBLE", "FLOAT", "MAP(VARCHAR, VARCHAR)")
)
_time = functools.partial(_column, "TIMESTAMP", unit="UTC")
_list = functools.partial(_column, "VARCHAR[]")

CLUSTER = _text("cluster", "name of the cluster, as given at import or in the configuration")
IMPORT = _text("import_id", "the row of `imports` this came from; NULL where whorl measured it")


# The number in `store.toml` and in every file's metadata: 4, or with a part "4.1". It grows when an older whorl would
# misunderstand a file. Formats 1 to 3 were never released.
FORMAT = 4
# The generation of columns in `store.toml`: one more where columns are `added`. The files of a store with this number
# have all columns, which readers of many files need not look for.
COLUMNS = 5
CATALOG = "whorl.duckdb"  # the file of views and macros

_VERSIONS = ("whorl", "kernel", "driver", "cuda_driver", "cuda_runtime", "nvrtc", "cublas", "cupy", "simulation")
_SECONDS_BY_REASON = record({reason.name: "DOUBLE" for reason in CLOCK_EVENTS})

_GPU = _text("gpu", "the GPU: its UUID, else its place (cabinet-node-device), else its name")
_WORKLOAD = _text("workload", "what ran: a probe, or an application")
_NODE, _MODEL = _text("node", "the host"), _text("model", "product name")
_RUNS, _SITTINGS = _whole("n", "its runs"), _whole("sittings", "its sittings: runs without a pause of 6 hours or more")
_PEERS = _whole("peers", "GPUs that were compared, itself included")

# fmt: off
GPUS = Table("gpus", "an identity of a GPU, and when it was first seen", (
    CLUSTER, _GPU,
    _text("uuid", "UUID of the physical GPU"),
    _text("place", "cabinet-node-device; a row with `uuid` too links them"),
    _text("cabinet", "cabinet or rack"),
    _text("node", "host, unique within the cluster"),
    _whole("slot", "position of the GPU within its node"),
    _MODEL,
    _text("serial", "board serial number"),
    _text("vbios", "firmware version"),
    _text("inforom", "version of the board's own record (InfoROM)", added=True),
    _text("gsp_firmware", "firmware of the GPU's system processor", added=True),
    _text("driver", "driver version"),
    _text("pci_bus_id", "PCI address"),
    _whole("nvml_index", "index in the driver at that time; never a key"),
    _whole("power_limit_mw", "enforced power limit", "mW"),
    _whole("power_limit_default_mw", "power limit as delivered", "mW"),
    _whole("power_limit_min_mw", "lowest power limit that can be set", "mW"),
    _whole("power_limit_max_mw", "highest power limit that can be set", "mW"),
    _whole("sm_clock_max_mhz", "maximum SM clock", "MHz"),
    _whole("mem_clock_max_mhz", "maximum memory clock", "MHz"),
    _whole("temperature_max_operating_c", "highest in operation", "degC"),
    _whole("temperature_slowdown_c", "from here the hardware slows the clock", "degC"),
    _whole("temperature_shutdown_c", "from here the GPU shuts down", "degC"),
    _whole("memory_total", "device memory", "B"),
    _text("parent", "of a MIG instance: the UUID of its GPU"),
    _text("mig_profile", "of a MIG instance: its profile, as 1g.10gb"),
    _time("first_seen", "when this identity was seen first, or again after another"),
    IMPORT,
), sorted_by=("cluster", "gpu"))

TELEMETRY = Table("telemetry", "the metrics of a GPU at one time; shares (ppm) and rates (B/s) are means since the row "
                  "before", (
    _time("ts", "when the reading was taken"),
    CLUSTER, _GPU,
    *(Column(m.name, "BIGINT", m.unit, m.description, m.kind, m.added) for m in METRICS),
    _whole("read_us", "how long the driver took to answer", "us", kind="gauge"),
    _text("quality", "what is wrong with the sensors", kind="text"),
    IMPORT,
), sorted_by=("gpu", "ts"), partitioned=True)

CAMPAIGNS = Table("campaigns", "the progress of a campaign; the last `stored_to` counts", (
    CLUSTER,
    _text("campaign", "name of the campaign"),
    _map("asked", "what was asked for, by argument or argument.part"),
    _list("probes", "probes that were asked for"),
    _text("fleet", "of a simulated fleet: its identity"),
    _time("born", "of a simulated fleet: when it was new"),
    _whole("gpus", "number of GPUs"),
    _time("began", "when it began"),
    _time("stored_to", "everything before this is stored"),
    _time("ended", "when it ended, or will end"),
), sorted_by=("cluster", "campaign", "stored_to"), key=("cluster", "campaign", "stored_to"))

RUNS = Table("runs", "one workload or probe on one GPU, once", (
    _text("run_id", "its identity, the same for the same row of any file"),
    CLUSTER,
    _text("campaign", "its campaign; NULL: imported"),
    _WORKLOAD, _GPU,
    _text("job_id", "the batch job; the GPUs of one job ran together"),
    _time("began", "when it began"),
    _time("ended", "when it ended"),
    _real("sm_clock_mhz", "median SM clock while it ran", "MHz"),
    _real("mem_clock_mhz", "median memory clock while it ran", "MHz"),
    _real("temperature_c", "median GPU temperature while it ran", "degC"),
    _real("power_w", "median board power while it ran", "W"),
    Column("conditions", record({condition.name: condition.type for condition in CONDITIONS}), "",
           "the stated conditions", grown=any(field.added for field in CONDITIONS)),
    _text("probe_version", "version of the probe"),
    Column("versions", record(dict.fromkeys(_VERSIONS, "VARCHAR")), "", "versions of software and driver"),
    Column("clock_events", _SECONDS_BY_REASON, "s", "how long the clock was held down, by reason"),
    _text("ended_by", "why it ended, a code; NULL: imported"),
    _text("status", "how it came out, a code"),
    _text("status_detail", "the same in a sentence; NULL where it is 'ok'"),
    IMPORT,
), sorted_by=("cluster", "workload", "gpu", "began"), key=("run_id",))

RESULTS = Table("results", "one figure of one run", (
    _text("run_id", "the run of `runs`"),
    CLUSTER, _WORKLOAD, _GPU,
    _whole("repeat", "which repeat of the run, from 0"),
    _text("figure", "name of the figure; 'time' is the duration that variability is of"),
    _text("unit", "unit of `value`; times are in ms"),
    _real("value", "the figure", "`unit`"),
), sorted_by=("cluster", "workload", "gpu"), key=("run_id",))

EVENTS = Table("events", "something that happened to a GPU", (
    _time("ts", "when it happened or was noticed"),
    CLUSTER,
    _text("gpu", "the GPU, as in `gpus`; NULL of what concerns no single GPU, and where the store does not know which "
          "GPU is at `pci_bus_id` of the node"),
    _NODE,
    _text("pci_bus_id", "PCI address of the GPU", added=True),
    _text("kind", "what happened, a code"),
    _text("workload", "the probe that it is about"),
    _text("metric", "the column of `telemetry` that it is about"),
    _text("quality", "the mark of `telemetry.quality` that it is about"),
    _whole("code", "number of an error"),
    _real("before", "what it was", "of `metric`"),
    _real("value", "what it is now; of a power sensor, mW", "of `metric`"),
    _whole("n", "how many: ticks, wrong elements, MIG instances, XIDs"),
    _whole("duration_ns", "how long", "ns"),
    _text("version", "version of the driver"),
    _text("campaign", "its campaign"),
    _text("job_id", "its batch job"),
    _text("detail", "the same in a sentence, for people"),
    IMPORT,
), sorted_by=("gpu", "ts"))

IMPORTS = Table("imports", "one workload of one imported file: its provenance and row counts", (
    _text("import_id", "hash of the content and the options"),
    _text("file", "name of the file"),
    _text("sha256", "SHA-256 of the content, unpacked"),
    _whole("bytes", "size of the content, unpacked", "B"),
    _text("format", "the format that was recognised"),
    CLUSTER,
    _text("workload", "what the counts are of; NULL: telemetry"),
    _whole("rows", "rows read"),
    _whole("kept", "rows stored"),
    _whole("duplicates", "exact duplicates dropped"),
    _whole("refused", "rows refused"),
    _whole("placeholders", "values that became NULL"),
    Column("units", "STRUCT(column_name VARCHAR, unit VARCHAR, taken_from VARCHAR)[]", "",
                            "the unit of each column, and how it is known"),
    _map("options", "options, as map.COLUMN"),
    _list("notes", "what the importer noticed"),
    _text("importer", "version of the importer"),
    _time("imported_at", "when"),
), key=("import_id", "workload"))

TRUTH = Table("truth", "the fault planted in a simulated GPU: used to judge detectors, never read by analysis", (
    CLUSTER, _GPU,
    _text("kind", "the fault, or 'ok' for a healthy GPU"),
    _time("began", "when the fault began; NULL: at the start"),
    _time("ended", "when it ended"),
    _real("size_pct", "how large the fault is", "%"),
    _text("population", "the population that the fleet was drawn from"),
    Column("silicon", "MAP(VARCHAR, DOUBLE)", "", "what was drawn for this GPU, by parameter"),
    _text("model", "the simulated model"),
    _whole("seed", "seed of the fleet"),
    _text("parameters", "version of the simulation's parameter set"),
), sorted_by=("cluster", "gpu"), key=("cluster", "gpu", "kind", "began", "population", "seed", "parameters"))

JOBS = Table("jobs",
             "an allocation of a GPU to a job (of a node, where GPUs are not known), as one import found it; a "
             "changed one has further rows, and `jobs_now` the newest", (
    CLUSTER,
    _text("allocation", "identity of the allocation; a job that was requeued has several"),
    _text("job_id", "the job: 4242, of an array 4242_7"),
    _text("raw_id", "the number that the job itself sees; joins with `runs.job_id`"),
    _whole("restart", "how often it was requeued before"),
    _text("user", "who; with anonymise= a pseudonym"),
    _text("account", "the account that pays; with anonymise= a pseudonym"),
    _text("partition", "partition or queue"),
    _text("qos", "quality of service"),
    _text("state", "the scheduler's state, or that of a tag"),
    _whole("exit_code", "exit status"),
    _whole("exit_signal", "the signal that ended it; 0: none"),
    _time("submitted", "when it was submitted, or requeued"),
    _time("eligible", "when it could have begun"),
    _time("began", "when it began"),
    _time("ended", "when it ended; NULL while it runs"),
    _text("node", "the node"),
    _text("gpu", "the GPU or MIG instance"),
    _text("gpu_from", "how the GPU is known, a code"),
    _text("gpu_type", "the type allocated: v100, 1g.10gb"),
    _real("share", "its part of the GPU: 1 is all"),
    _whole("node_gpus", "how many GPUs the row is: 1 if `gpu` is known"),
    _whole("job_gpus", "GPUs of the whole job"),
    _whole("job_nodes", "nodes of the whole job"),
    _whole("time_limit_s", "its time limit", "s"),
    _text("requested", "what it asked for (ReqTRES)"),
    _text("allocated", "what it got (AllocTRES)"),
    _whole("job_energy_j", "energy by the scheduler, which jobs on one node count twice", "J"),
    _text("tag", "`allocation` of the tag that gave the GPU"),
    _text("source", "where the row comes from, a code"),
    _time("recorded", "when it was stored; the newest counts"),
    IMPORT,
), sorted_by=("gpu", "began"), key=("cluster", "allocation", "recorded"))

SPANS = Table("spans", "a span that ended: a part of an application's work, and its energy", (
    CLUSTER,
    _text("span", "its identity: 16 hex digits (W3C Trace Context)"),
    _text("parent", "the span around it, maybe of another process"),
    Column("within_parent", "BOOLEAN", "", "whether the parent's energy includes it"),
    _text("name", "its name"),
    _map("attributes", "what else the application said"),
    _text("job_id", "the batch job"),
    _NODE,
    _list("gpus", "its GPUs"),
    _time("began", "when it began"),
    _time("ended", "when it ended"),
    _real("own_j",
          "what it used outside the spans inside it; these add up. Alone, that of a short span says little", "J"),
    _real("energy_j", "what it and the spans inside it used", "J"),
    _real("low_j", "lower end of its 95 % interval", "J"),
    _real("high_j", "upper end of it", "J"),
    _real("measured", "share of its time in which the GPUs were read"),
    _text("method", "what most of it was read from: 'counter' or 'power'"),
    _text("reason", "why energy_j is NULL, a code: 'no gpu', 'mostly gaps', 'too short', ..."),
    _text("error", "class of the exception that ended it"),
    _text("trace_id", "its trace, over processes and nodes: 32 hex digits", added=True),
    _text("process", "the ledger that counted it: spans of one never count energy twice", added=True),
), sorted_by=("cluster", "began"), key=("cluster", "span"))

SPANS_OPEN = Table("spans_open", "what a span that had not ended had used until `ended`, written every few seconds: "
                   "what is left of the spans of a process that was killed. The view `spans_now` has each span once",
                   SPANS.columns, sorted_by=("cluster", "span", "ended"), key=("cluster", "span", "ended"),
                   last_of=("cluster", "span"), added=True)

OPERATIONS = Table("operations", "an operation of a rank of a training job, such as the forward pass of a microbatch", (
    CLUSTER,
    _text("job", "the training job: by `job`, its layout file, or the file's name"),
    _whole("rank", "the rank that it is of"),
    _whole("dp_rank", "its place in data parallelism"),
    _whole("stage", "its stage of the pipeline"),
    _whole("tp_size", "ranks that compute each layer together (tensor parallelism)"),
    _text("gpu", "the GPU of the rank, as in `gpus`; NULL where nobody said it"),
    _whole("step", "number of the training step"),
    _text("optype", "what it is, in the words of the file: 'forward-compute', 'forward-send', ..."),
    _whole("model_chunk", "the part of the model (interleaved pipeline)"),
    _whole("microbatch", "the microbatch"),
    _real("began_s", "when it began, by the file's clock", "s"),
    _real("duration_s", "how long it lasted", "s"),
    IMPORT,
), sorted_by=("cluster", "job", "optype", "rank", "step"), added=True)

NODE_POWER = Table("node_power", "power or energy of a node or a part of it at one time, by a meter outside the GPUs", (
    CLUSTER,
    _text("node", "the host, as in `gpus`"),
    _time("ts", "when it was read"),
    _text("source", "what measured it, a code"),
    _text("covers", "what it is the power of, a code"),
    _text("part", "which CPU package, power supply or outlet, which add up; NULL: all"),
    _whole("power_mw", "power", "mW"),
    _whole("window_ms", "the power is the mean of so long before `ts`", "ms"),
    _whole("energy_mj", "counter of energy; it falls where it began anew", "mJ"),
    IMPORT,
), sorted_by=("cluster", "node", "ts"), key=("cluster", "node", "ts", "source", "covers", "part"), added=True)

# -- what whorl concluded -------------------------------------------------------------------------------------

_JUDGEMENT, _JUDGED_AT = _text("judgement", "the row of `judgements`"), _time("judged_at", "when")
_CHANGE = ("STRUCT(gpu VARCHAR, workload VARCHAR, effect_pct DOUBLE, low_pct DOUBLE, high_pct DOUBLE, q DOUBLE, "
           'n BIGINT, since TIMESTAMP, "at" TIMESTAMP, state VARCHAR, together BIGINT, joined_with ')
_VERSION_OF = _text("version", "version of whorl")
_MEASURED = ('STRUCT(figure VARCHAR, "value" DOUBLE, peers DOUBLE, unit VARCHAR, "limit" DOUBLE, n BIGINT, '
             '"at" TIMESTAMP, "text" VARCHAR, text_before VARCHAR)[]')

_FINDING = (
    _whole("place", "its place, from 0, the worst"),
    _text("level", "'gpu', 'rank', 'node', 'batch' or 'slot'"),
    _text("name", "of the GPU (`node/slot` where known), the node, or what the batch shares"),
    Column("gpus", 'STRUCT("name" VARCHAR, gpu VARCHAR)[]', "", "the GPUs that it covers"),
    _text("model", "product name"),
    _list("workloads", "in which it shows, the largest effect first"),
    _text("kind", "a code: 'slow', 'hot', 'lost', ..."),
    _text("state", "'suspected': seen in one sitting; 'confirmed': in two or more"),
    _real("effect_pct", "in the first of `workloads`, of the peers' level; slower is positive", "%"),
    _real("low_pct", "lower end of the 95 % interval of the level in another sitting", "%"),
    _real("high_pct", "upper end of it", "%"),
    _real("p", "chance that a healthy one shows this"),
    _real("q", "share of false findings among those as clear"),
    _whole("n", "GPUs or nodes that were compared, itself included"),
    Column("causes", "STRUCT(what VARCHAR, pct DOUBLE, low_pct DOUBLE, high_pct DOUBLE)[]", "", "parts of the effect, "
           "with the 95 % interval of each"),
    _time("first_seen", "when the first run that shows it began"),
    _time("last_seen", "when the last one began"),
    _list("runs", "`run_id` of the runs that show it"),
    _text("action", "what to do, a code: 'clean cooling', 'reset clock', ..."),
    _text("reference", "what it was compared with: 'gpus', 'nodes', or its 'past'"),
    _text("figure",
          "what the effect is of: 'time', 'highest clock', ...; of 'throttled runs' in percentage points; '' of "
          "what was not measured"),
    Column("measured", _MEASURED, "", "the numbers that tell it; `peers`: of the peers, or of its past", added=True),
    Column("at_clock", "BOOLEAN", "", "whether times are as at the peers' clock", added=True),
)

JUDGEMENTS = Table("judgements",
                   "a judgement of the GPUs of a cluster: what was looked at, and what could not be judged", (
    _text("judgement", "its identity"),
    CLUSTER,
    _text("campaign", "its campaign; NULL: every run"),
    _time("since", "earlier runs were left out"),
    _JUDGED_AT, _VERSION_OF,
    _whole("gpus", "GPUs that were judged"),
    _whole("looks", "comparisons that were made"),
    _whole("findings", "rows of `verdicts`"),
    _list("watch", "GPUs to measure again: newly slower than their past"),
    _whole("runs", "runs of the cluster"),
    _text("content", "hash of what was concluded"),
    Column("not_judged", "STRUCT(subject VARCHAR, why VARCHAR)[]", "", "as `unjudged`, in sentences; NULL where "
           "`unjudged` is known"),
    Column("changes", f"{_CHANGE}VARCHAR[])[]", "", "as `level_changes`, in words; NULL where `level_changes` is "
           "known"),
    Column("unjudged", 'STRUCT(subject VARCHAR, why VARCHAR, n BIGINT, total BIGINT, "share" DOUBLE, since TIMESTAMP, '
           '"at" TIMESTAMP, model VARCHAR, "level" VARCHAR)[]', "",
           "what was not judged, and why, a code with its numbers", added=True),
    Column("level_changes", f"{_CHANGE}{_MEASURED})[]", "",
           "levels that changed, between `since` and `at`", added=True),
    Column("smallest", "STRUCT(workload VARCHAR, model VARCHAR, pct DOUBLE, any_clock_pct DOUBLE, gpus BIGINT, "
           "sittings BIGINT, why VARCHAR)[]", "",
           "by workload, the smallest effect that could have been named", added=True),
    _whole("levels", "rows of `levels`", added=True),
    _whole("facts", "events that need no run, and operations of training jobs", added=True),
    _whole("ranks", "ranks of training jobs that were judged", added=True),
    Column("watched", f"{record({column.name: column.type for column in _FINDING})}[]", "", "findings about the GPUs "
           "of `watch`, with the columns of `verdicts`", added=True),
), sorted_by=("cluster", "judged_at"), key=("judgement",))

VERDICTS = Table("verdicts",
                 "a finding about a GPU, a rank, a node or a batch; a new judgement adds rows and changes none", (
    _JUDGEMENT, CLUSTER, _JUDGED_AT,
    _VERSION_OF, *_FINDING,
    _text("looks", "the finding in a sentence; NULL where `measured` tells it"),
), sorted_by=("cluster", "judged_at", "place"), key=("judgement",))

LEVELS = Table("levels", "the time of a judged GPU in a workload, and that of its peers", (
    _JUDGEMENT, CLUSTER, _JUDGED_AT, _GPU, _MODEL,
    _text("workload", "the workload"),
    _real("time_ms", "median over the GPU's sittings, without what a day did to all", "ms"),
    _real("low_ms", "lower end of the 95 % interval of the time in another sitting", "ms"),
    _real("high_ms", "upper end of it", "ms"),
    _real("ratio", "`time_ms` over that of the peers"),
    _real("ratio_low", "lower end of its interval"),
    _real("ratio_high", "upper end of it"),
    _whole("rank", "its place among the peers, from 1, the fastest"),
    _whole("rank_low", "the lowest in another sitting"),
    _whole("rank_high", "the highest one"),
    _PEERS, _RUNS, _SITTINGS,
    _real("within_pct", "standard deviation of its runs within sittings", "%"),
    _whole("within_freedom", "degrees of freedom of `within_pct`"),
    _real("between_pct", "standard deviation of its sittings", "%"),
), sorted_by=("cluster", "judged_at", "gpu"), key=("judgement",), added=True)

DAY_LEVELS = Table("day_levels", "what was usual on a day: quantiles of the times of a model's GPUs in a workload", (
    _JUDGEMENT, CLUSTER, _JUDGED_AT,
    _text("workload", "the workload"),
    _MODEL,
    _time("day", "midnight of the day"),
    _whole("gpus", "GPUs that were measured"),
    _real("time_5_ms", "5 % of their sittings were faster", "ms"),
    _real("time_25_ms", "25 % were faster", "ms"),
    _real("time_50_ms", "the median", "ms"),
    _real("time_75_ms", "75 % were faster", "ms"),
    _real("time_95_ms", "95 % were faster", "ms"),
), sorted_by=("cluster", "judged_at", "workload", "day"), key=("judgement",), added=True)

FINGERPRINTS = Table("fingerprints",
                     "a figure of one GPU in a workload or class of workloads; a new fingerprint stands beside "
                     "earlier ones", (
    CLUSTER, _GPU,
    _text("serial", "board serial number"),
    _MODEL,
    _text("class", "what the workload stresses: compute, memory, power, latency, path or other"),
    _text("workload", "the workload; NULL: the whole class, or the GPU"),
    _text("figure", "name of the figure, as `time` or `sm_clock`"),
    _text("unit", "unit of `value`; '' for a ratio to the peers"),
    _real("value", "median over the GPU's sittings", "`unit`"),
    _real("low", "lower end of the 95 % interval of the value in another sitting", "`unit`"),
    _real("high", "upper end of it", "`unit`"),
    _real("ratio", "`value` over the median of the peers"),
    _real("ratio_low", "lower end of its interval"),
    _real("ratio_high", "upper end of it"),
    _whole("rank", "its place among the peers, from 1, the lowest"),
    _PEERS, _RUNS, _SITTINGS, _VERSION_OF,
    _time("made_at", "when"),
    _list("evidence", "`run_id` of the newest runs behind it, 20 at most"),
), sorted_by=("cluster", "gpu", "made_at"), key=("cluster", "gpu", "made_at"))

CALIBRATIONS = Table("calibrations",
                     "the error of a GPU's power sensor, learnt from the power of its node: true power is (1 + "
                     "h) x read power + p", (
    CLUSTER, _GPU,
    _text("node", "the host whose power was known"),
    _text("model", "product name"),
    _time("made_at", "when"),
    _time("since", "when the first of its windows began"),
    _time("until", "when the last ended"),
    _text("source", "what measured the node, a code as in `node_power`"),
    _whole("windows", "windows in which the power of node and GPUs was known"),
    _real("h", "to be added to 1 for the gain"),
    _real("p", "to be added to the power", "W"),
    _real("hh", "variance of h, of this board alone"),
    _real("hp", "covariance of h and p, as of `hh`", "W"),
    _real("pp", "variance of p, as of `hh`", "W^2"),
    Column("shared", "STRUCT(factor VARCHAR, h DOUBLE, p DOUBLE)[]", "",
                             "what boards share, as the gain of the meter: how far h and p move for one "
                             "standard deviation of an independent factor"),
    _real("learnt", "the part of the variance of h that went"),
    _text("finding", "what to know of it, a code"),
    _VERSION_OF,
), sorted_by=("cluster", "gpu", "made_at"), key=("cluster", "gpu", "made_at"), added=True)
# -- made from telemetry

_WRITTEN = _whole("written", "when the row was stored, since 1970", "ns")
_FOLLOWS_TELEMETRY = (*TELEMETRY.columns, _WRITTEN)

LATEST = Table("latest", "the last reading of a GPU, however long ago", _FOLLOWS_TELEMETRY, sorted_by=("gpu", "ts"),
               made=True)

_OF_A_MINUTE = {  # by kind of column: what a name ends with, what its meaning begins with, and its type, if another
    "gauge": (("_min", "lowest in the minute", ""), ("_mean", "mean over the minute's rows", "DOUBLE"),
              ("_max", "highest in the minute", "")),
    "counter": (("_first", "first in the minute", ""), ("_last", "last in the minute", "")),
    "mask": (("", "every bit set in the minute", ""),),
    "text": (("", "any in the minute", ""),),
    "": (),
}


def of_a_minute(column: Column) -> tuple[Column, ...]:
    """What a minute keeps of a column of telemetry."""
    return tuple(
        Column(
            f"{column.name}{end}", kind or column.type, column.unit, f"{begin}: {column.description}",
            "counter" if column.kind == "counter" else "", column.added,
        )
        for end, begin, kind in _OF_A_MINUTE[column.kind]
    )


MINUTES = Table("telemetry_minutes", "one minute of a GPU's pruned telemetry", (
    _time("ts", "when the minute began"),
    CLUSTER, _GPU,
    _whole("n", "rows of telemetry that it replaces; a late one makes another row"),
    *(part for column in TELEMETRY.columns for part in of_a_minute(column)),
), sorted_by=("gpu", "ts"), partitioned=True, made=True)

ENERGY_MINUTES = Table("energy_minutes",
                       "the energy of a GPU in a minute, in a part of one where a job began or ended, or in a "
                       "longer time without readings; `whorl store compact` makes them", (
    _time("ts", "when it began; it ends where the next begins, the last at `ended` of `energy_days`"),
    CLUSTER, _GPU,
    _real("energy_j", "energy: best estimate", "J"),
    _small("filled_j", "of it, what no sensor measured", "J"),
    _small("unread_s", "how long nobody read the GPU", "s"),
    _small("counter_s", "for how long the energy counter was used", "s"),
    _small("stuck_s", "of `unread_s`, for how long the power sensor was stuck", "s"),
    _small("zero_s", "of it, for how long it read 0 W", "s"),
    _small("below_j", "how much less it could be: a bound, which adds up", "J"),
    _small("above_j", "how much more", "J"),
    _small("variance_j2", "variance of what differs from reading to reading", "J2"),
    _small("alias_w2s", "variance of power that a beat or a locked load hides, x time", "W2 s"),
    _small("alias_j2", "that, x how long it stays the same", "J2"),
    _small("level_j", "energy at `ts` in the time that readings may lag by", "J"),
    _small("lag_j", "energy that the lag may move across `ts`", "J"),
    _small("doubt_j", "energy that may lie on the other side of `ts`", "J"),
    _small("swing_w", "range of the power around its mean", "W"),
), sorted_by=("gpu", "ts"), partitioned=True, made=True, added=True)

ENERGY_DAYS = Table("energy_days", "the meter of a GPU on a day, for its rows of `energy_minutes`", (
    _time("ts", "when the day began"),
    CLUSTER, _GPU,
    _whole("minutes", "rows of `energy_minutes`"),
    _time("began", "from when it was metered on this day"),
    _time("ended", "to when"),
    _real("end_level_j", "as `level_j` of `energy_minutes`, at `ended`", "J"),
    _real("end_lag_j", "as `lag_j`, at `ended`", "J"),
    _real("end_doubt_j", "as `doubt_j`, at `ended`", "J"),
    _real("idle_w", "what it drew without work", "W"),
    _real("idle_low_w", "the least that it may be", "W"),
    _real("idle_high_w", "the most", "W"),
    _text("idle_source", "what that is known from, a code"),
    _text("power_source", "which readings gave most of the energy, a code"),
    _real("limit_w", "power limit", "W"),
    _real("lowest_w", "the least that it can draw", "W"),
    _real("highest_w", "the most", "W"),
    _text("reason", "why it has no energy, a code"),
    Column("notes", "STRUCT(problem VARCHAR, began TIMESTAMP, ended TIMESTAMP, joules DOUBLE, percent DOUBLE, seconds "
           "DOUBLE, n BIGINT, has_rows BOOLEAN)[]",
           "", "what went wrong in its readings, as `whorl energy reconcile` lists it"),
), sorted_by=("gpu", "ts"), partitioned=True, made=True, added=True)

DERIVED: tuple[Table, ...] = (ENERGY_MINUTES, ENERGY_DAYS)
"""Tables that analysis makes of the telemetry of a day, and makes again where that changed."""

OF_TELEMETRY = {*TELEMETRY.names, *(part.name for column in TELEMETRY.columns for part in of_a_minute(column))}
"""Columns of `latest` and `telemetry_minutes` that follow from those of `telemetry`."""

TABLES: tuple[Table, ...] = (
    GPUS, TELEMETRY, CAMPAIGNS, RUNS, RESULTS, EVENTS, JOBS, IMPORTS, JUDGEMENTS, VERDICTS, LEVELS, DAY_LEVELS,
    FINGERPRINTS, CALIBRATIONS, TRUTH, SPANS, SPANS_OPEN, OPERATIONS, NODE_POWER, LATEST, MINUTES, *DERIVED,
)

KEY = ("cluster", "gpu", "ts")
"""What names a reading: of several rows of telemetry with one key, the row written last counts."""

# -- bookkeeping: no tables for people

LATE = Table("late", "a row of telemetry that takes the place of an earlier one", _FOLLOWS_TELEMETRY,
             sorted_by=("gpu", "ts"), partitioned=True, made=True)

REPLACED = Table("replaced", "a file that readers leave out, by one note; the note with the highest number counts: see "
                 "store/replacing.py", (
    _whole("number", "number of the note"),
    _whole("step", "1 before the switch, 2 after it, 0 where nothing is replaced"),
    _text("file", "path within the store; '' in a note that hides nothing"),
    Column("hidden", "BOOLEAN", "", "whether readers leave it out"),
), made=True)
# fmt: on

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
        "VARCHAR": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "FLOAT": pa.float32(),
        "BOOLEAN": pa.bool_(), "TIMESTAMP": pa.timestamp("us"),
    }  # fmt: skip
    if spelled in plain:
        return plain[spelled]
    if spelled.endswith("[]"):
        return pa.list_(arrow_type(spelled[:-2]))
    kind, _, inside = spelled.removesuffix(")").partition("(")
    parts = _PARTS.split(inside)
    if kind == "MAP":
        return pa.map_(*map(arrow_type, parts))
    fields = [part.split(" ", maxsplit=1) for part in parts]
    return pa.struct([(name.strip('"'), arrow_type(of_field)) for name, of_field in fields])


_PARTS = re.compile(r", (?![^()]*\))")  # commas that are not within the brackets of a part


def arrow_rows(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Rows of the table called `name`, from some of its columns: anything that Arrow makes an array of.

    Of times, whole numbers are ns since 1970, and us are kept of them. Raises StoreError for a field that a record does
    not have.
    """
    import pyarrow as pa

    schema = arrow_schema(name)
    return pa.table({key: _array(values, schema.field(key).type) for key, values in columns.items()})


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind, safe=not pa.types.is_timestamp(kind))
    if pa.types.is_struct(kind):  # Arrow would drop a field that it does not know without a word
        unknown = {name for row in values if row is not None for name in row} - {field.name for field in kind}
        if unknown:
            raise StoreError(f"a record has no field {', '.join(sorted(unknown))}; it has {', '.join(kind.names)}")
    if not pa.types.is_timestamp(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.timestamp("ns")).cast(kind, safe=False)


def texts_of(values: Mapping[str, object]) -> dict[str, str | None]:
    """Values of any kind as a MAP column of texts holds them, by name.

    A text is as it is, a list its texts with commas, anything else as JSON writes it. Of a value that has parts with
    names, each part is a value: name.part.
    """
    texts: dict[str, str | None] = {}
    for name, value in sorted(values.items()):
        if isinstance(value, Mapping):
            texts |= texts_of({f"{name}.{part}": inside for part, inside in value.items()})
        elif isinstance(value, list | tuple):
            texts[name] = ", ".join(map(str, value))
        else:
            texts[name] = value if value is None or isinstance(value, str) else json.dumps(value, default=str)
    return texts
