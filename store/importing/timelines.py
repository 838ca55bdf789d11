"""Timelines of training jobs: a sheet of operations, one a row with its rank, as rows of `operations`.

Two small files may say what a timeline does not: how the ranks are laid out, and which rank has which GPU.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ..schema import OPERATIONS
from . import identity
from .content import LINE, Sheet
from .layout import Bound, Layout
from .meanings import PLACEHOLDERS, TIMELINE_MEANINGS
from .options import Options
from .values import Remarks, is_placeholder, numbers, parsed

if TYPE_CHECKING:
    from ..store import Store

_NEEDED = ("rank", "step", "time")
_SIZES = ("dp_size", "pp_size", "tp_size")
_PAIR = re.compile(r"^\s*([^\s:#][^:#]*?)\s*:(?:\s+(.*?))?\s*$")
_UUID = re.compile(r"^(?i:GPU|MIG)-[0-9a-f-]{8,}$", re.IGNORECASE)
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
    `trace-X.parquet`, or a YAML file of the same name that states a size."""
    if options.layout is not None:
        return options
    stem = path.name.split(".")[0]
    for name in dict.fromkeys((re.sub("^trace", "meta", stem), stem)):
        for suffix in (".yaml", ".yml"):
            beside = path.with_name(name + suffix)
            try:
                if beside != path and beside.is_file() and _SIZES & _pairs(beside).keys():
                    return replace(options, layout=beside)
            except (InputError, OSError):
                continue
    return options


def check_none(sheet: Sheet, options: Options) -> None:
    """Raise InputError if an option that only timelines have is given for another file."""
    if options.job is not None or options.ranks is not None:
        option = "job" if options.job is not None else "ranks"
        raise InputError(f"{sheet.file} is no timeline of a training job: leave out --{option}")


def parse(
    sheet: Sheet, layout: Layout, options: Options, remarks: Remarks
) -> tuple[pl.DataFrame, pl.DataFrame, list[int]]:
    """The operations of a sheet (columns of `operations`, and LINE), no events, and the lines of duplicates.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = layout.bound
    rank_layout = read_layout(options.layout) if options.layout is not None else RankLayout()
    gpus = read_ranks(options.ranks, options) if options.ranks is not None else {}
    duplicates = identity.drop_duplicates(sheet)
    items = {name: item for name, item in bound.items() if item.meaning.kind == "number"}
    for name, item in items.items():  # -1 stands where an operation is of no microbatch
        needed = name in _NEEDED
        numbers(sheet, [item], remarks, minus_one=not needed, required=name if needed else "")
    sheet.refuse(
        (is_placeholder(bound["optype"].column, minus_one=False), f"{bound['optype'].column} is missing"),
        *(
            (pl.col(parsed(item.meaning)).floor() != pl.col(parsed(item.meaning)), f"{item.column} is no whole number")
            for item in items.values()
            if not item.meaning.dimension
        ),
    )
    frame = _placed(_frame(sheet, items, bound["optype"]), rank_layout, remarks)
    job = options.job or rank_layout.job or sheet.file.split(".")[0]
    keys = pl.DataFrame({"rank": list(gpus), "gpu": list(gpus.values())}, {"rank": pl.Int64, "gpu": pl.String})
    frame = frame.with_columns(pl.lit(options.cluster).alias("cluster"), pl.lit(job).alias("job"))
    frame = frame.join(keys, on="rank", how="left", maintain_order="left")
    if options.layout is not None:
        remarks.notes.append(f"how the ranks are laid out is taken from {options.layout.name}")
    if gpus and (without := frame.filter(pl.col("gpu").is_null())["rank"].unique().sort().to_list()):
        listed = ", ".join(map(str, without[:5])) + (", ..." if len(without) > 5 else "")
        remarks.notes.append(f"{options.ranks.name if options.ranks else ''} names no GPU of rank {listed}")
    columns = [name for name in OPERATIONS.names if name in frame.columns]
    return frame.select(LINE, *columns), pl.DataFrame(schema={LINE: pl.Int64}), duplicates


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


def _placed(frame: pl.DataFrame, layout: RankLayout, remarks: Remarks) -> pl.DataFrame:
    """The operations with `tp_size`, and with stage and place in data parallelism where only the layout tells them."""
    frame = frame.with_columns(pl.lit(layout.tp_size, pl.Int64).alias("tp_size"))
    for column, size in (("stage", layout.pp_size), ("dp_rank", layout.dp_size)):
        highest = frame[column].max()
        if size is not None and isinstance(highest, int) and highest >= size:
            remarks.notes.append(
                f"{column} goes to {highest}, and the layout file says {size} of them: is it of this job?"
            )
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
    sizes: dict[str, int | None] = dict.fromkeys(_SIZES)
    for name in sizes:
        text = pairs.get(name)
        if text is not None and not (text.isascii() and text.isdigit() and 0 < int(text) <= 10**7):
            raise InputError(f"{path}: {name} is {text!r}, which is no number of ranks; write a whole number from 1")
        sizes[name] = None if text is None else int(text)
    trial, run = pairs.get("trial_name", ""), pairs.get("run_id", "0")
    job = trial if run == "0" or not trial else f"{trial} run {run}"
    return RankLayout(job, **sizes)


def read_ranks(path: Path, options: Options) -> dict[int, str]:
    """The key of the GPU of each rank, from a CSV or a YAML file. Raises InputError."""
    text = _text(path)
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    entries = _of_csv(path, text) if re.search("[,;\t]", first) else _of_yaml(path)
    fleet = options.fleet()
    keys = {str(name).lower(): str(gpu) for name, gpu in fleet.select("name", "gpu").iter_rows() if name}
    keys |= {str(gpu).lower(): str(gpu) for gpu in fleet["gpu"]}
    gpus: dict[int, str] = {}
    for place, rank, gpu in entries:
        if not (rank.isascii() and rank.isdigit()):
            raise InputError(f"{path}: {place} has the rank {rank!r}, which is no whole number from 0")
        if gpu.lower() not in keys and not _UUID.match(gpu) and not _SLOT.match(gpu):
            raise InputError(
                f"{path}: {place} has {gpu!r}, which names no GPU: write its UUID (GPU-...), or its node and index "
                "(n01/3, or the columns node and index)"
            )
        key = keys.get(gpu.lower(), gpu)
        if int(rank) in gpus:
            raise InputError(f"{path}: {place} names rank {rank} a second time; keep one of the two")
        if key in gpus.values():
            first_rank = next(number for number, name in gpus.items() if name == key)
            raise InputError(
                f"{path}: {place} gives rank {rank} the GPU {gpu} of rank {first_rank}; mend one of the two"
            )
        gpus[int(rank)] = key
    if not gpus:
        raise InputError(f"{path} names no rank: write a line for each, such as 0,GPU-... under the header rank,uuid")
    return gpus


def _of_csv(path: Path, text: str) -> list[tuple[str, str, str]]:
    """Place, rank and GPU of each line of a table. Raises InputError."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    delimiter = max(",;\t", key=lines[0].count)
    header = [name.strip().lower() for name in next(csv.reader([lines[0]], delimiter=delimiter))]
    gpu, index, node = (
        next((header.index(name) for name in names if name in header), None)
        for names in (_GPU_NAMES, _INDEX_NAMES, _NODE_NAMES)
    )
    if "rank" not in header or (gpu is None and (index is None or node is None)):
        raise InputError(f"{path}: the header is {lines[0].strip()[:80]!r}; it needs rank, and uuid or node and index")
    entries = []
    for number, fields in enumerate(csv.reader(lines[1:], delimiter=delimiter), start=2):
        if len(fields) != len(header):
            raise InputError(f"{path}: line {number} has {len(fields)} fields, but the header names {len(header)}")
        cells = [cell.strip() for cell in fields]
        stated = "" if gpu is None or cells[gpu].lower() in PLACEHOLDERS else cells[gpu]
        if node is not None and (not stated or stated.isdigit()):
            place = stated or ("" if index is None else cells[index])
            stated = f"{cells[node]}/{place}" if cells[node] and place else ""
        if stated:  # the GPU of a rank may be unknown
            entries.append((f"line {number}", cells[header.index("rank")], stated))
    return entries


def _of_yaml(path: Path) -> list[tuple[str, str, str]]:
    """Place, rank and GPU of each line `rank: GPU`. Raises InputError."""
    return [(f"rank {rank}", rank, gpu) for rank, gpu in _pairs(path).items() if gpu.lower() not in PLACEHOLDERS]


def _pairs(path: Path) -> dict[str, str]:
    """The lines `name: value` of a file. Raises InputError where a line is another."""
    pairs: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        text = re.sub(r"(?:^|\s)#.*$", "", line)
        if not text.strip() or text.strip() in ("---", "..."):
            continue
        match = _PAIR.match(text)
        if match is None or (text[0].isspace() and pairs) or match[2] is None:
            raise InputError(f"{path}: line {number} is {line.strip()[:60]!r}; write each line as NAME: VALUE")
        name = match[1].strip("'\"")
        if name in pairs:
            raise InputError(f"{path}: line {number} has {name} a second time; keep one of the two")
        pairs[name] = match[2].strip("'\"")
    return pairs


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read ({why}): give the path of a file that can") from error
