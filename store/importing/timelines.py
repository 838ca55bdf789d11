"""Timelines of training jobs: a sheet of operations, one a row with its rank, as rows of `operations`.

Two small files may say what a timeline does not: how the ranks are laid out, and which rank has which GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ..schema import OPERATIONS
from . import content, identity
from .content import LINE, Sheet
from .meanings import TIMELINE_MEANINGS, Bound
from .options import Options
from .values import is_placeholder, numbers, parsed, stated

if TYPE_CHECKING:
    from ..store import Store

_NEEDED = ("rank", "step", "time")
_SIZES = {"dp_size", "pp_size", "tp_size"}
_PAIR = re.compile(r"([^\s:][^:]*?)\s*:\s+(\S.*)")
_UUID = re.compile(r"(?i)^(?:GPU|MIG)-[0-9a-f-]{8,}$")
_SLOT = re.compile(r"^(\S+)/([0-9]{1,4})$")
_GPU_NAMES = ("uuid", "gpu_uuid", "gpu")
_INDEX_NAMES = ("index", "gpu_index", "slot", "device", "local_rank")
_NODE_NAMES = ("node", "host", "hostname")
_GPU_COLUMNS = {"cluster": pl.String, "gpu": pl.String, "uuid": pl.String, "node": pl.String, "slot": pl.Int64}


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How the ranks of a job are laid out. Of ranks, those of tensor parallelism count fastest, the stages slowest."""

    job: str = ""
    dp_size: int | None = None
    pp_size: int | None = None
    tp_size: int | None = None


def with_layout(path: Path, options: Options) -> Options:
    """The options with the layout file that lies beside a timeline, where none is named: `meta-X.yaml` beside
    `trace-X.parquet`, if it states a size."""
    beside = path.with_name(re.sub("^trace", "meta", path.name.split(".")[0]) + ".yaml")
    if options.layout is not None or beside == path:
        return options
    try:
        return replace(options, layout=beside) if _SIZES & _pairs(beside).keys() else options
    except InputError:
        return options


def check_none(sheet: Sheet) -> None:
    """Raise InputError if an option that only timelines have is given for another file."""
    if sheet.options.job is not None or sheet.options.ranks is not None:
        option = "job" if sheet.options.job is not None else "ranks"
        raise InputError(f"{sheet.file} is no timeline of a training job: leave out --set {option}")


def parse(sheet: Sheet) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operations of a sheet (columns of `operations`, and LINE), and no events.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = sheet.bound
    rank_layout = read_layout(sheet.options.layout) if sheet.options.layout is not None else RankLayout()
    gpus = read_ranks(sheet.options.ranks, sheet.options) if sheet.options.ranks is not None else {}
    identity.drop_duplicates(sheet)
    items = {name: item for name, item in bound.items() if item.meaning.kind == "number"}
    for name, item in items.items():  # -1 stands where an operation is of no microbatch
        needed = name in _NEEDED
        numbers(sheet, [item], minus_one=not needed, required=name if needed else "")
    sheet.refuse(
        (is_placeholder(bound["optype"].column, minus_one=False), f"{bound['optype'].column} is missing"),
        *(
            (pl.col(parsed(item.meaning)).floor() != pl.col(parsed(item.meaning)), f"{item.column} is no whole number")
            for item in items.values()
            if not item.meaning.dimension
        ),
    )
    frame = _placed(_frame(sheet, items, bound["optype"]), rank_layout, sheet.notes)
    job = sheet.options.job or rank_layout.job or sheet.file.split(".")[0]
    keys = pl.DataFrame({"rank": list(gpus), "gpu": list(gpus.values())}, {"rank": pl.Int64, "gpu": pl.String})
    frame = frame.with_columns(pl.lit(sheet.options.cluster).alias("cluster"), pl.lit(job).alias("job"))
    frame = frame.join(keys, on="rank", how="left", maintain_order="left")
    if sheet.options.layout is not None:
        sheet.notes.append(f"how the ranks are laid out is taken from {sheet.options.layout.name}")
    if gpus and (without := frame.filter(pl.col("gpu").is_null())["rank"].unique().sort().to_list()):
        listed = ", ".join(map(str, without[:5])) + (", ..." if len(without) > 5 else "")
        sheet.notes.append(f"{sheet.options.ranks.name if sheet.options.ranks else ''} names no GPU of rank {listed}")
    columns = [name for name in OPERATIONS.names if name in frame.columns]
    return frame.select(LINE, *columns), pl.DataFrame(schema={LINE: pl.Int64})


def _frame(sheet: Sheet, items: Mapping[str, Bound], optype: Bound) -> pl.DataFrame:
    """The operations as the file has them; what it has no column for is NULL."""
    columns = []
    for meaning in TIMELINE_MEANINGS:
        if meaning.kind != "number":
            continue
        kind = pl.Float64 if meaning.dimension else pl.Int64
        value = pl.col(parsed(meaning)) if meaning.name in items else pl.lit(None)
        columns.append(value.cast(kind).alias(meaning.column))
    return sheet.frame.select(LINE, pl.col(optype.column).alias("optype"), *columns)


def _placed(frame: pl.DataFrame, layout: RankLayout, notes: list[str]) -> pl.DataFrame:
    """The operations with `tp_size`, and with stage and place in data parallelism where only the layout tells them."""
    frame = frame.with_columns(pl.lit(layout.tp_size, pl.Int64).alias("tp_size"))
    for column, size in (("stage", layout.pp_size), ("dp_rank", layout.dp_size)):
        highest = frame[column].max()
        if size is not None and isinstance(highest, int) and highest >= size:
            notes.append(f"{column} goes to {highest}, and the layout file says {size} of them: is it of this job?")
    if layout.pp_size == 1:
        frame = frame.with_columns(pl.col("stage").fill_null(0))
    if layout.dp_size is None or layout.tp_size is None or layout.pp_size is None:
        return frame
    highest = frame["rank"].max()
    if isinstance(highest, int) and highest < layout.dp_size * layout.tp_size * layout.pp_size:
        group = pl.col("rank") // layout.tp_size
        frame = frame.with_columns(
            pl.col("stage").fill_null(group // layout.dp_size), pl.col("dp_rank").fill_null(group % layout.dp_size)
        )
    return frame


def unseen(store: Store, frame: pl.DataFrame, options: Options) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operations that the store does not have, and rows of `gpus` for GPUs that it does not know."""
    key = ["rank", "step", "optype", "model_chunk", "microbatch", "began_s", "duration_s"]
    jobs = frame["job"].unique().to_list()
    same = (pl.col("cluster") == options.cluster) & pl.col("job").is_in(jobs)
    stored = store.collect(store.scan("operations").filter(same).select(key))
    if stored.height:
        stored = stored.with_columns(pl.col("optype").cast(pl.String)).unique()
        frame = frame.join(stored, on=key, how="anti", nulls_equal=True, maintain_order="left")
        differing = frame.join(stored, on=key[:5], how="semi", nulls_equal=True)
        if differing.height:
            raise InputError(
                f"the store has another timeline of job {jobs[0]!r} in cluster {options.cluster!r}, with other times "
                f"of rank {differing['rank'][0]} in step {differing['step'][0]}: name this one with --set job=NAME"
            )
    stored_gpus = set(options.fleet()["gpu"])
    rows = []
    for gpu in frame["gpu"].drop_nulls().unique().sort():
        if gpu in stored_gpus:
            continue
        slot = None if _UUID.match(gpu) else _SLOT.match(gpu)
        place = (None, slot[1], int(slot[2])) if slot else (gpu, None, None)
        rows.append((options.cluster, gpu, *place))
    return frame, pl.DataFrame(rows, schema=_GPU_COLUMNS, orient="row")


# -- the small files ------------------------------------------------------------------------------------------


def read_layout(path: Path) -> RankLayout:
    """The layout of ranks that a YAML file of `name: value` states. Raises InputError."""
    pairs = _pairs(path)
    sizes: dict[str, int] = {}
    for name in sorted(_SIZES & pairs.keys()):
        if not re.fullmatch("[1-9][0-9]{0,6}", pairs[name]):
            raise InputError(
                f"{path}: {name} is {pairs[name]!r}, which is no number of ranks; write a whole number from 1"
            )
        sizes[name] = int(pairs[name])
    trial, run = pairs.get("trial_name", ""), pairs.get("run_id", "0")
    job = trial if run == "0" or not trial else f"{trial} run {run}"
    return RankLayout(job, **sizes)


def read_ranks(path: Path, options: Options) -> dict[int, str]:
    """The key of the GPU of each rank, from a CSV: rank and uuid, or rank, node and index. Raises InputError."""
    sheet = content.read(path)
    columns = {name.lower(): name for name in sheet.names}
    rank, gpu, index, node = (
        next((columns[name] for name in names if name in columns), None)
        for names in (("rank",), _GPU_NAMES, _INDEX_NAMES, _NODE_NAMES)
    )
    if rank is None or (gpu is None and (index is None or node is None)):
        raise InputError(f"{path}: it has the columns {', '.join(sheet.names)}; it needs rank, and uuid or node, index")
    texts = [stated(column) if column is not None else pl.lit(None, pl.String) for column in (gpu, index, node)]
    name = pl.coalesce(texts[:2])
    name = pl.when(name.str.contains("^[0-9]+$")).then(pl.coalesce(texts[2] + "/" + name, name)).otherwise(name)
    fleet = options.fleet()
    keys = {str(name).lower(): str(gpu) for name, gpu in fleet.drop_nulls("name").select("name", "gpu").iter_rows()}
    keys |= {str(gpu).lower(): str(gpu) for gpu in fleet["gpu"]}
    names = sheet.frame.select(LINE, pl.col(rank).alias("rank"), name.alias("gpu")).drop_nulls("gpu")  # may be unknown
    known = pl.col("gpu").str.to_lowercase().replace_strict(keys, default=None, return_dtype=pl.String)
    names = names.with_columns(pl.coalesce(known, pl.col("gpu")).alias("key"), known.is_not_null().alias("known"))
    is_name = pl.col("known") | pl.col("gpu").str.contains(_UUID.pattern) | pl.col("gpu").str.contains(_SLOT.pattern)
    number = pl.col("rank").str.strip_chars_start("0")
    for bad, sentence in (
        (~pl.col("rank").str.contains("^[0-9]+$"), "has the rank {rank!r}, which is no whole number from 0"),
        (~is_name, "has {gpu!r}, which names no GPU: write its UUID (GPU-...), or its node and index (n01/3, or the "
                   "columns node and index)"),
        (~number.is_first_distinct(), "names rank {rank} a second time; keep one of the two"),
        (~pl.col("key").is_first_distinct(), "gives rank {rank} the GPU {gpu} of another rank: mend it"),
    ):  # fmt: skip
        for row in names.filter(bad).head(1).iter_rows(named=True):
            raise InputError(f"{path}: line {row[LINE]} {sentence.format(**row)}")
    if not names.height or sheet.refused.count:
        raise InputError(f"{path}: write a line for each rank, such as 0,GPU-... under the header rank,uuid")
    return dict(names.select(pl.col("rank").cast(pl.Int64), "key").iter_rows())


def _pairs(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read ({why}): give the path of a file that can") from error
    pairs: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stated = re.sub(r"(?:^|\s)#.*$", "", line).strip()
        match = _PAIR.fullmatch(stated)
        if match is not None:
            name = match[1].strip("'\"")
            if name in pairs:
                raise InputError(f"{path}: line {number} has {name} a second time; keep one of the two")
            pairs[name] = match[2].strip("'\"")
        elif stated not in ("", "---", "..."):
            raise InputError(f"{path}: line {number} is {line.strip()[:60]!r}; write each line as NAME: VALUE")
    return pairs
