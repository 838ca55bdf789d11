"""Jobs and their GPUs: a sheet of allocations, one job a row with its GPU or GPUs, and `scontrol show job -d`, as
rows of `jobs`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from .. import hostlist
from ..vocabulary import EventKind, GpuFrom, JobSource
from . import identity, superseding
from .content import LINE, Sheet
from .layout import recognise
from .meanings import PLACEHOLDERS, Bound
from .options import typed
from .provenance import Report
from .rows import Rows, Value, parts
from .times import times
from .values import is_placeholder, numbers, parsed, stated

if TYPE_CHECKING:
    from ..store import Store

BACKWARD = "it ended before it began: a clock was set back, or the columns were exchanged"
_BETWEEN = re.compile(r"[;,|]\s*|\s+(?=(?:GPU|MIG)-)", re.IGNORECASE)  # between the GPUs of one field
_NUMBERS = re.compile(r"^(?:.*\(IDX:)?([0-9]{1,3}(?:-[0-9]{1,3})?(?:\s*[;,|]\s*[0-9]{1,3}(?:-[0-9]{1,3})?)*)\)?$")
_BY_SLURM = " IDX "
"""Between a node and one of Slurm's indices, as the name by which a file calls a GPU."""
_MOST = 128  # GPUs of one node
_MANY = 10  # rows, of which one would have the first GPU


def parse(sheet: Sheet) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The allocations of a sheet (columns of `jobs`, and LINE), and events about refused rows.

    A row that names several GPUs becomes one row for each. Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = sheet.bound
    identity.drop_duplicates(sheet)
    texts = sheet.frame
    stamps = texts.select(LINE)
    for name in ("submitted", "began", "ended"):
        if name in bound:
            times(sheet, bound[name], minus_one=False, stream=False, after="=began" if name == "ended" else "")
            stamps = stamps.join(sheet.frame.select(LINE, f"={name}"), on=LINE, how="left")  # the end may be unreadable
    if "share" in bound:
        numbers(sheet, [bound["share"]], minus_one=False)
    began, ended = pl.col("=began"), pl.col("=ended")
    sheet.refuse(
        (is_placeholder(bound["job"].column, minus_one=False), "it names no job"),
        (_node_has(bound, r"[\[,;\s+]"), "it names several nodes: write a row for each"),
        (_node_has(bound, r"[/*()]"), "its node is no name of a host: write n01, not n01/0*8 as PBS does"),
        (began.is_null(), f"{bound['began'].column} is missing"),
        ((ended < began).fill_null(False), BACKWARD),
    )
    _gpus(sheet)
    frame = _frame(sheet, sheet.options.cluster)
    once = frame.sort(pl.col("ended").is_null(), pl.col(LINE), descending=[True, False])
    once = once.unique(superseding.KEY, keep="last")  # running and ended, in one file
    sheet.duplicates += frame.join(once, on=LINE, how="anti")[LINE].unique().sort().to_list()
    return once.sort(LINE), _refused(texts.join(stamps, on=LINE, how="left"), sheet)


def beside_telemetry(store: Store, sheet: Sheet, report: Report) -> pl.DataFrame:
    """The new rows of `jobs` of a file that also has telemetry; the report tells of them. `sheet` is of its jobs."""
    sheet.options = replace(sheet.options, columns={}, units={})
    recognise(sheet)
    frame, _ = parse(sheet)
    rows = superseding.conformed(going_on(store, frame))
    new_rows = superseding.new_records(store, rows)
    number, stored = (table.select(superseding.KEY).unique().height for table in (rows, new_rows))
    report.notes.append(f"it says which jobs had the GPUs: {number} rows of jobs, {stored} of them new or changed")
    return new_rows


def going_on(store: Store, frame: pl.DataFrame) -> pl.DataFrame:
    """Allocations that a source shows at times only: one that the store has as running goes on, with its begin."""
    of_exporter = pl.col("source") == JobSource.EXPORTER.value
    running = superseding.newest(store, of_exporter & pl.col("raw_id").is_in(frame["raw_id"].unique().implode()))
    before = running.filter(pl.col("ended").is_null()).select(
        "cluster", "raw_id", "gpu", pl.col("allocation").alias("=allocation"), pl.col("began").alias("=began")
    )
    before = before.sort("=began").unique(["cluster", "raw_id", "gpu"], keep="last")
    joined = frame.join(before, on=["cluster", "raw_id", "gpu"], how="left", maintain_order="left")
    later = of_exporter & (pl.col("=began") < pl.col("began")).fill_null(False)
    return joined.with_columns(
        pl.when(later).then(f"={name}").otherwise(name).alias(name) for name in ("allocation", "began")
    ).drop("=allocation", "=began")


def _node_has(bound: dict[str, Bound], characters: str) -> pl.Expr:
    """Whether the field of the node has characters of a list, such as `n[01-04]`: no GPU is on a node of that name."""
    if "node" not in bound:
        return pl.lit(False)
    node = bound["node"].column
    return ~is_placeholder(node, minus_one=False) & pl.col(node).str.contains(characters)


def _gpus(sheet: Sheet) -> None:
    """`=gpu`: a row for each GPU of each row; NULL where the row has only a node."""
    none = [pl.lit(None, pl.String).alias(name) for name in ("=gpu", "=said")]
    gpu_column = sheet.bound.get("gpu") or sheet.bound.get("index")
    if gpu_column is None:
        sheet.refuse((is_placeholder(sheet.bound["node"].column, minus_one=False), "it names no node"))
        sheet.frame = sheet.frame.with_columns(none)
        return
    unknown = is_placeholder(gpu_column.column, minus_one=False)
    _which_or_how_many(sheet, gpu_column, unknown)
    no_node = is_placeholder(sheet.bound["node"].column, minus_one=False) if "node" in sheet.bound else pl.lit(True)
    sheet.refuse((unknown & no_node, "it names neither a GPU nor a node"))
    without = sheet.frame.filter(unknown).with_columns(none)
    sheet.frame = sheet.frame.filter(~unknown)
    of_driver = sheet.options.columns.get(gpu_column.column, "").partition(":")[0] == "index"
    _one_each(sheet, gpu_column.column, of_driver=of_driver)
    # Names stay as they are: which card had one when the job began, the view `jobs_now` says.
    is_name = pl.col("=number") | pl.col(gpu_column.column).is_in(sheet.options.fleet()["name"].to_list())
    by_name = sheet.frame.filter(is_name).with_columns(
        pl.col(gpu_column.column).alias("=gpu"), pl.col(gpu_column.column).alias("=said")
    )
    by_name = _of_slurm(by_name, gpu_column.column, sheet)
    sheet.frame = sheet.frame.filter(~is_name).with_columns(none[1])
    identity.of_jobs(sheet, gpu_column)
    refused = [line for lines in sheet.refused.lines.values() for line in lines]
    all_rows = pl.concat([sheet.frame, by_name, without], how="diagonal").sort(LINE)
    sheet.frame = all_rows.filter(~pl.col(LINE).is_in(refused))  # with one of its GPUs, the row is refused


def _of_slurm(rows: pl.DataFrame, column: str, sheet: Sheet) -> pl.DataFrame:
    """The rows, with the UUID as `=gpu` where the GPU is an index of Slurm's (IDX): a place in gres.conf, which is no
    number of the driver's. NULL where no tag says which GPU that was when the job began."""
    by_index = pl.col("=said").str.contains(_BY_SLURM, literal=True)
    gpus: list[str | None] = []
    for name, began in rows.filter(by_index).select("=said", "=began").iter_rows():
        node, _, index = name.partition(_BY_SLURM)
        order = {} if sheet.options.slurm_order is None else sheet.options.slurm_order(node, began)
        gpus.append(order.get(int(index)))
    if None in gpus:
        sheet.notes.append(
            f"{gpus.count(None)} GPUs of jobs are known by Slurm's index (IDX) only, which is a place in gres.conf: "
            "tags of their nodes, in the store's folder tags, say which GPUs these are (docs/jobs.md); if it is the "
            f"driver's number on all of these nodes, say {typed('--map', column, 'index')}"
        )
    by_slurm = rows.filter(by_index).with_columns(pl.Series("=gpu", gpus, pl.String))
    return pl.concat([rows.filter(~by_index), by_slurm])


def _which_or_how_many(sheet: Sheet, gpu_column: Bound, unknown: pl.Expr) -> None:
    """Refuse plain numbers that may count the GPUs of a job, as accounts do, unless --map says that they do not.

    In a column `gpus` they may always; in a column `gpu` where many rows have numbers and none has 0, the first GPU.
    """
    texts = sheet.frame.filter(~unknown)[gpu_column.column]
    if gpu_column.mapped or not len(texts) or not texts.str.contains("^[0-9]+$").all():
        return
    name = gpu_column.column
    if name.lower() == "gpus" or (
        name.lower() == "gpu" and len(texts) >= _MANY and not texts.str.contains("^0+$").any()
    ):
        raise InputError(
            f"{sheet.file}: column {name!r} may say which GPU of the node a job had, or how many: if which, say "
            f"{typed('--map', name, 'gpu')}; if how many, take the column out, and the jobs are stored for their "
            "nodes, without GPUs"
        )


def _one_each(sheet: Sheet, column: str, *, of_driver: bool) -> None:
    """A row for each GPU that a field lists. The number of a GPU on its node becomes its name, `node/number`, and an
    index of Slurm's `node IDX number`, unless the user says that these are the driver's."""
    node = sheet.bound["node"].column if "node" in sheet.bound else None
    pairs = sheet.frame.select(pl.col(column).alias("gpus"), pl.lit(None).alias("node") if node is None else node)
    by_name = {pair: _listed(*pair, of_driver=of_driver) for pair in pairs.unique().iter_rows()}
    lists = pl.Series(column, [by_name[pair] for pair in pairs.iter_rows()], pl.List(pl.String))
    sheet.frame = sheet.frame.with_columns(lists, pl.col(column).str.contains(_NUMBERS.pattern).alias("=number"))
    listed = pl.col(column).list.len()
    needs_node = "its GPU is a number, so its node is needed too (--map COLUMN=node)"
    sheet.refuse(
        (pl.col(column).is_null(), needs_node), ((listed == 0) | (listed > _MOST), f"{column} is no list of GPUs")
    )
    sheet.frame = sheet.frame.explode(column)


def _listed(text: str, node: str | None, *, of_driver: bool) -> list[str] | None:
    """The GPUs of a field; empty where it cannot be read, None where it has numbers of an unknown node."""
    match = _NUMBERS.match(text)
    if match is None:
        return list(dict.fromkeys(part.strip() for part in _BETWEEN.split(text) if part.strip()))
    if node is None or node.lower() in PLACEHOLDERS:
        return None
    numbers: dict[int, None] = {}
    for part in _BETWEEN.split(match[1].replace(" ", "")):
        first, _, last = part.partition("-")
        if last and not int(first) <= int(last):
            return []
        numbers |= dict.fromkeys(range(int(first), int(last or first) + 1))
    between = _BY_SLURM if "IDX:" in text and not of_driver else "/"
    return [f"{node}{between}{number}" for number in numbers]


def _frame(sheet: Sheet, cluster: str) -> pl.DataFrame:
    texts = [stated(b.column).alias(b.meaning.column) for b in sheet.bound.values() if b.meaning.kind == "text"]
    numbers_of = [
        pl.col(parsed(sheet.bound[name].meaning)).alias(name) for name in ("submitted", "share") if name in sheet.bound
    ]
    has_gpu = pl.col("=gpu").is_not_null()
    frame = sheet.frame.select(
        pl.lit(cluster).alias("cluster"),
        *texts,
        *numbers_of,
        pl.col("=began").alias("began"),
        pl.col("=ended").alias("ended"),
        pl.col("=gpu").alias("gpu"),
        pl.col("=said"),
        pl.when(has_gpu).then(pl.lit(GpuFrom.FILE.value)).alias("gpu_from"),
        pl.when(has_gpu | pl.col("=said").is_not_null()).then(pl.lit(1)).alias("node_gpus"),
        pl.lit(sheet.source or JobSource.CSV.value).alias("source"),
        pl.col(LINE),
    )
    # The GPU as the file calls it: its key may become known later, and then it is still the same allocation.
    needs_node = pl.coalesce("=said", "gpu", "node") if "node" in frame.columns else pl.coalesce("=said", "gpu")
    began = pl.col("began").dt.epoch("ms").cast(pl.String)
    return frame.select(
        pl.exclude("=said", "raw_id"),
        pl.concat_str("job_id", needs_node, began, separator="@").alias("allocation"),
        pl.coalesce("raw_id" if "raw_id" in frame.columns else "job_id", "job_id").alias("raw_id"),
    )


def _refused(texts: pl.DataFrame, sheet: Sheet) -> pl.DataFrame:
    """An event for each refused row that has a time: whoever adds up the energy of jobs must know of it."""
    why = [(line, reason) for reason, lines in sheet.refused.lines.items() for line in lines]
    rows = texts.join(pl.DataFrame(why, {LINE: pl.Int64, "why": pl.String}, orient="row"), on=LINE)

    bound = sheet.bound

    def text(name: str) -> pl.Expr:
        return stated(bound[name].column) if name in bound else pl.lit(None, pl.String)

    times = pl.col("=began"), pl.col("=ended")
    job = pl.format("job {}", text("job").fill_null("without a name"))
    return rows.filter(pl.coalesce(*times).is_not_null()).select(
        pl.coalesce(*times).alias("ts"),
        pl.lit(EventKind.JOB_REFUSED.value).alias("kind"),
        pl.when(text("gpu").str.contains("^(?i:GPU|MIG)-[0-9A-Fa-f-]{36}$")).then(text("gpu")).alias("gpu"),
        text("node").alias("node"),
        text("job").alias("job_id"),
        (times[1] - times[0]).dt.total_nanoseconds().alias("duration_ns"),
        pl.format("{} is not stored: {} ({}, line {})", job, "why", pl.lit(sheet.file), LINE).alias("detail"),
    )


# -- scontrol show job -d -------------------------------------------------------------------------------------

# A job that waits is passed over; one that runs has no end, though Slurm prints the latest that it may have. Of shards,
# MPS and MIG instances Slurm numbers something else than GPUs, so that only the node of such a job is known.

SCONTROL = "scontrol show job"

SCONTROL_BEGIN = re.compile(r"^[ \t]*JobId=[0-9]+ (?:\S+ )*JobName=", re.MULTILINE)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_]*)=")
_NODE_LINE = re.compile(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES(?:_IDX)?=(\S*)")  # GRES_IDX until Slurm 19
_GPU_TYPE = re.compile(r"(?:^|,)gpu(?::([^:(),]+))?(?::[0-9]+)?(?:\(IDX:([0-9,-]+)\))?")  # type, numbers
_HAS_GPUS = re.compile(r"GRES(?:_IDX)?=\S*(?:gpu|shard|mps)|gres[/:](?:gpu|shard|mps)")
_INSTANCE = re.compile(r"^[0-9]+g\.")  # the type of a MIG instance: 1g.10gb
_NOTHING = (None, "", "(null)", "Unknown")
_RUN = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING")  # states of jobs that have no end
_TEXTS = {"account": "Account", "partition": "Partition", "submitted": "SubmitTime", "began": "StartTime"}


def read_scontrol(text: str, rows: Rows) -> None:
    """Add the rows of each job in the text. Raises InputError where no job of it had a GPU."""
    passed: Counter[str] = Counter()
    for line, job in parts(text, SCONTROL_BEGIN):  # with -o it is one line
        fields = _fields(job)
        state = fields.get("JobState", "")
        if state == "PENDING" or not {fields.get("StartTime"), fields.get("NodeList")}.isdisjoint(_NOTHING):
            passed["did not begin"] += 1
            continue
        if not _HAS_GPUS.search(job):
            passed["have no GPU"] += 1
            continue
        values: dict[str, Value] = {name: fields.get(field) for name, field in _TEXTS.items()}
        values |= {"job": _job_id(fields), "raw_id": fields["JobId"], "state": state}
        values |= {"user": fields.get("UserId", "").partition("(")[0]}
        values |= {"ended": None if state in _RUN else fields.get("EndTime")}
        _add(line, job, values, rows)
    for why, number in passed.items():
        rows.note(f"{number} jobs {why}, and are not stored")
    if passed and rows.allocations is None:
        raise InputError(f"{rows.file}: none of its {passed.total()} jobs had a GPU")


def _job_id(fields: dict[str, str]) -> str:
    """The job as sacct calls it: 7, of an array 7_1; 7+0 is a part of a job."""
    for first, between, second in (("ArrayJobId", "_", "ArrayTaskId"), ("HetJobId", "+", "HetJobOffset")):
        if fields.get(second, "").isdecimal():
            return f"{fields.get(first)}{between}{fields[second]}"
    return fields["JobId"]


def _fields(job: str) -> dict[str, str]:
    """The first value of each field, `JobId=7`; a value may have spaces."""
    words = _FIELD.split(job)
    pairs = zip(words[1::2], words[2::2], strict=True)
    return {name: value.strip() for name, value in reversed(list(pairs))}


def _add(line: int, job: str, values: dict[str, Value], rows: Rows) -> None:
    """The rows of a job: one for each node, with Slurm's indices of its GPUs there."""
    on_nodes = [match.groups() for match in _NODE_LINE.finditer(job)]
    if on_nodes:
        on_nodes = [(nodes, resources) for nodes, resources in on_nodes if re.search("gpu|shard|mps", resources)]
    else:  # without -d
        on_nodes = [(_fields(job).get("NodeList", ""), "")]
        rows.note("the GPUs of jobs are not known: save scontrol show job -d, which numbers them")
    for nodes, resources in on_nodes:
        try:
            names = hostlist.expand(nodes)
        except InputError:
            names = []
        if not names:
            rows.refuse(line, "it names no node")
            continue
        numbers = [match[2] for match in _GPU_TYPE.finditer(resources) if not _INSTANCE.match(match[1] or "")]
        gpus = f"(IDX:{';'.join(filter(None, numbers))})" if numbers and None not in numbers else ""
        for node in names:
            gpus_there: dict[str, Value] = {"node": node, "gpu": gpus, "share [ratio]": 1 if gpus else None}
            rows.allocation(line, values | gpus_there, JobSource.SCONTROL)
