"""Damages small files at random, imports them, and judges what was kept: run by `test_mutations.py`.

    python mutations.py FOLDER SEED COUNT [STORE]

FOLDER holds undamaged CSV files. Prints {"tried": n, "kept": n, "refused": n, "failures": [...]} as JSON; each
failure has the seed of its case. With STORE, each case goes into a store as well. The judge shares no code with
the importer: it reads the damaged text itself and asks of each stored value which field, under which header and
in which unit, it was.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pyarrow as pa

from whorl.errors import WhorlError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file, read_file

# meaning -> (column of the frame, accepted names in order, unit of bare numbers, unit stored)
RUNS = {
    "time": ("value", ("perf",), "ms", "ms"),
    "sm_clock": ("sm_clock_mhz", ("freq", "median_freq", "sm_clock"), "mhz", "mhz"),
    "mem_clock": ("mem_clock_mhz", ("memfreq", "median_memfreq"), "mhz", "mhz"),
    "temperature": ("temperature_c", ("temp", "median_temp"), "c", "c"),
    "power": ("power_w", ("pwr", "median_pwr"), "w", "w"),
}
TELEMETRY = {
    "power": ("power_mw", ("power.draw",), "w", "mw"),
    "instant": ("power_instant_mw", ("power.draw.instant",), "w", "mw"),
    "average": ("power_average_mw", ("power.draw.average",), "w", "mw"),
    "sm_clock": ("sm_clock_mhz", ("clocks.current.sm", "clocks.sm"), "mhz", "mhz"),
    "mem_clock": ("mem_clock_mhz", ("clocks.current.memory", "clocks.mem"), "mhz", "mhz"),
    "temperature": ("temperature_c", ("temperature.gpu",), "c", "c"),
    "memory_temperature": ("memory_temperature_c", ("temperature.memory",), "c", "c"),
    "utilization": ("utilization", ("utilization.gpu",), "%", "%"),
    "memory_utilization": ("memory_utilization", ("utilization.memory",), "%", "%"),
}
UNITS = {
    "s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6, "hz": 1e-6, "khz": 1e-3, "mhz": 1.0, "ghz": 1e3,
    "w": 1.0, "mw": 1e-3, "kw": 1e3, "uw": 1e-6, "c": 1.0, "%": 1.0, "ratio": 100.0,
}  # fmt: skip
UNKNOWN = {
    "", "na", "n/a", "nan", "null", "none", "-", "err!", "not supported", "unknown error", "[n/a]", "[not supported]",
    "[unknown error]", "[gpu is lost]", "[insufficient permissions]", "[not found]",
}  # fmt: skip
SECONDS = {"perf_s", "train_time"}
NUMBER = re.compile(r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(\S.*)?$")
LINE = "=line"


def kind_of(column: str, file: str) -> str:
    """What a column of an undamaged file truly is: a clock, a duration in ms, ..."""
    name = re.sub(r"\s*\[.*", "", column).lower()
    if name in SECONDS:
        return "s"
    if name.endswith("iter_dur"):
        return "s" if "bert" in file else "ms"
    if name in ("perf", "kern_sum"):
        return "ms"
    for part, kind in (("freq", "clock"), ("clock", "clock"), ("temp", "heat"), ("pwr", "power"), ("power", "power")):
        if part in name:
            return kind
    return name


KINDS = {"time": ("s", "ms"), "power": ("power",), "instant": ("power",), "average": ("power",)}
KINDS |= dict.fromkeys(("sm_clock", "mem_clock"), ("clock",))
KINDS |= dict.fromkeys(("temperature", "memory_temperature"), ("heat",))


PLAUSIBLE = {"mhz": (50, 10_000), "c": (5, 125), "w": (1, 5_000), "%": (0, 100)}


@dataclass
class Case:
    """A file under damage: names, fields, and which true column lies at each position."""

    file: str
    names: list[str]
    rows: list[list[str]]
    truth: list[str] = field(default_factory=list)
    delimiter: str = ","
    end: str = "\n"
    last_end: bool = True
    swapped: bool = False  # two names were swapped: plausible ones cannot be noticed
    done: list[str] = field(default_factory=list)
    after: list[Callable[[bytes], bytes]] = field(default_factory=list)  # damage to the bytes
    pack: Callable[[bytes], bytes] = bytes

    def text(self) -> bytes:
        lines = [self.delimiter.join(cells) for cells in (self.names, *self.rows)]
        data = (self.end.join(lines) + (self.end if self.last_end else "")).encode()
        for damage in self.after:
            data = damage(data)
        return data


def load(path: Path) -> Case:
    text = path.read_bytes().decode()
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(end)
    last_end = lines[-1] == ""
    cells = [line.split(",") for line in lines if line]
    return Case(path.name, cells[0], cells[1:], list(cells[0]), end=end, last_end=last_end)


# -- damage -------------------------------------------------------------------------------------------------


def flip(case: Case, r: random.Random) -> None:
    where, bits = [r.random() for _ in range(r.randint(1, 4))], [r.randrange(1, 256) for _ in range(4)]

    def damage(data: bytes) -> bytes:
        out = bytearray(data)
        for place, bit in zip(where, bits, strict=False):
            out[int(place * len(out))] ^= bit
        return bytes(out)

    case.after.append(damage)


def insert(case: Case, r: random.Random) -> None:
    place = r.random() ** r.choice((1, 6))  # often in the header
    extra = r.choice(
        [b"\x00", b'"', b",", b"\n", b"\r", b"9", b".", b"-", b"e5", b" ", b"\xff\xfe", b";", "µ".encode()]
    )
    case.after.append(lambda data: data[: int(place * len(data))] + extra + data[int(place * len(data)) :])


def delete(case: Case, r: random.Random) -> None:
    place, length = r.random() ** r.choice((1, 6)), r.choice((1, 1, 1, 2, 5, 40))
    case.after.append(lambda data: data[: int(place * len(data))] + data[int(place * len(data)) + length :])


def truncate(case: Case, r: random.Random) -> None:
    share = r.random()
    case.after.append(lambda data: data[: int(share * len(data))])


def cut_row(case: Case, r: random.Random) -> None:
    for _ in range(r.randint(1, 4)):
        row = r.choice(case.rows)
        del row[r.randrange(1, len(row) + 1) :]


def double_rows(case: Case, r: random.Random) -> None:
    for _ in range(r.randint(1, 5)):
        case.rows.insert(r.randrange(len(case.rows) + 1), list(r.choice(case.rows)))


def swap_rows(case: Case, r: random.Random) -> None:
    r.shuffle(case.rows)


def header_inside(case: Case, r: random.Random) -> None:
    names = list(case.names)
    if r.random() < 0.5:
        r.shuffle(names)
    case.rows.insert(r.randrange(len(case.rows) + 1), names)


def drop_column(case: Case, r: random.Random) -> None:
    i = r.randrange(len(case.names))
    del case.names[i], case.truth[i]
    for row in case.rows:
        del row[i : i + 1]


def move_column(case: Case, r: random.Random) -> None:
    order = list(range(len(case.names)))
    r.shuffle(order)
    if all(len(row) == len(order) for row in case.rows):
        case.names, case.truth = [case.names[i] for i in order], [case.truth[i] for i in order]
        case.rows = [[row[i] for i in order] for row in case.rows]


def rename(case: Case, r: random.Random) -> None:
    i = r.randrange(len(case.names))
    case.names[i] = r.choice(
        [case.names[i] + "2", case.names[i].upper(), "x", "", case.names[i][1:], "perf_min", "=gpu"]
    )


def swap_names(case: Case, r: random.Random) -> None:
    i, j = r.randrange(len(case.names)), r.randrange(len(case.names))
    case.names[i], case.names[j] = case.names[j], case.names[i]
    case.swapped = True


def rotate_header(case: Case, r: random.Random) -> None:
    by = r.randrange(1, max(2, len(case.names)))
    case.names = case.names[by:] + case.names[:by]


def shift_header(case: Case, r: random.Random) -> None:
    """One name is lost and another appears elsewhere, so that those between stand over the wrong data."""
    del case.names[r.randrange(len(case.names))]
    case.names.insert(r.randrange(len(case.names) + 1), "extra")


def shift_data(case: Case, r: random.Random) -> None:
    """A field is lost on every row and an empty or repeated one appears elsewhere."""
    width = len(case.names)
    i, j, twin = r.randrange(width), r.randrange(width), r.random() < 0.5
    case.truth = [*case.truth[:i], *case.truth[i + 1 :]]
    case.truth.insert(j, case.truth[j] if twin and j < width - 1 else "nothing")
    for row in case.rows:
        if len(row) == width:
            del row[i]
            row.insert(j, row[j] if twin and j < width - 1 else "")


def extra_field(case: Case, r: random.Random) -> None:
    j = r.randrange(len(case.names) + 1)
    for row in case.rows:
        row.insert(min(j, len(row)), r.choice(["", "7"]))


def relabel(case: Case, r: random.Random) -> None:
    swaps = [
        ("[W]", "[mW]"),
        ("[W]", "[kW]"),
        ("[MHz]", "[GHz]"),
        ("[MHz]", "[kHz]"),
        ("[W]", "[V]"),
        ("[%]", "[ratio]"),
    ]
    units = r.choice(["s", "ns", "us", "ms"])
    for i, name in enumerate(case.names):
        if name.strip() in ("perf", "freq", "pwr") and r.random() < 0.7:
            unit = {"perf": units, "freq": r.choice(["ghz", "khz", "mhz"]), "pwr": r.choice(["mw", "kw", "w"])}
            case.names[i] = r.choice(["{}_{}", "{} [{}]"]).format(name, unit[name.strip()])
    old, new = r.choice(swaps)
    case.names = [name.replace(old, new) for name in case.names]


def relabel_values(case: Case, r: random.Random) -> None:
    share, unit = (
        r.choice((0.1, 0.5, 1.0)),
        r.choice([" kW", " mW", " W", " ms", "s", " GHz", " MHz", " C", " K", " %"]),
    )
    i = r.randrange(len(case.names))
    for row in case.rows:
        if r.random() < share and i < len(row):
            row[i] = row[i].removesuffix(" W") + unit


def placeholders(case: Case, r: random.Random) -> None:
    for _ in range(r.randint(1, 30)):
        row = r.choice(case.rows)
        if row:
            row[r.randrange(len(row))] = r.choice(
                ["", "N/A", "[N/A]", "-1", "nan", "inf", "1e309", "[GPU is lost]", "-0", "0x1F", "１２", "9" * 40]
            )


def dialect(case: Case, r: random.Random) -> None:
    case.delimiter, case.end = r.choice(",;\t"), r.choice(["\n", "\r\n", "\r", "\n\n", " \n"])


def compress(case: Case, r: random.Random) -> None:
    place, how = r.random(), r.choice(["whole", "cut", "flip"])
    zstd = r.random() < 0.5

    def pack(data: bytes) -> bytes:
        raw = pa.compress(data, codec="zstd", asbytes=True) if zstd else gzip.compress(data)
        if how == "cut":
            return raw[: int(place * len(raw))]
        if how == "flip" and raw:
            i = int(place * len(raw))
            return raw[:i] + bytes([raw[i] ^ 0x10]) + raw[i + 1 :]
        return raw

    case.pack = pack


DAMAGE = [
    flip, flip, insert, insert, delete, delete, truncate, cut_row, double_rows, swap_rows, header_inside, drop_column,
    move_column, rename, swap_names, rotate_header, shift_header, shift_data, extra_field, relabel, relabel,
    relabel_values, placeholders, dialect, compress,
]  # fmt: skip


def damaged(bases: list[Path], seed: int) -> Case:
    r = random.Random(seed)
    case = load(r.choice(bases))
    case.rows = r.sample(case.rows, min(len(case.rows), r.choice((1, 3, 25, 40, 60))))
    for mutate in r.sample(DAMAGE, r.choice((1, 1, 1, 2, 3))):
        if case.rows and case.names:
            mutate(case, r)
            case.done.append(mutate.__name__)
    return case


# -- the judge ----------------------------------------------------------------------------------------------


class WrongError(Exception):
    """What the importer did cannot be explained by the file."""


def expect(fine: bool, what: str) -> None:
    if not fine:
        raise WrongError(what)


def data_lines(data: bytes) -> tuple[list[str], str, dict[int, list[str] | None]]:
    """The names, the delimiter, and line number -> fields (None where it cannot be cut)."""
    text = data.decode("utf-8-sig", "replace")
    lines = text.split("\n" if "\n" in text else "\r")
    numbered = [(n, line.rstrip("\r")) for n, line in enumerate(lines, start=1) if line.strip("\r").strip()]
    delimiter = max(",;\t", key=numbered[0][1].count)
    cut: dict[int, list[str] | None] = {}
    for n, line in numbered:
        try:
            cells = next(csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True), [])
            cut[n] = [cell.strip() for cell in cells]
        except csv.Error:
            cut[n] = None
    names = cut.pop(numbered[0][0])
    return names or [], delimiter, cut


def split_name(name: str) -> tuple[str, str]:
    match = re.match(r"^(.*?)\s*[\[(]\s*(.+?)\s*[\])]$", name)
    return (match[1].lower(), match[2].lower()) if match else (name.lower(), "")


def position(names: list[str], usual: tuple[str, ...]) -> tuple[int, str] | None:
    """Where a meaning's column is, and the unit in its name."""
    for wanted in usual:
        for i, name in enumerate(names):
            if split_name(name)[0] == wanted:
                return i, split_name(name)[1]
        for i, name in enumerate(names):
            base, _, unit = name.lower().rpartition("_")
            if base == wanted and unit in UNITS:
                return i, unit
    return None


def judge_value(text: str, stored: float | None, bare: str, target: str, *, codes: bool) -> None:
    number = NUMBER.match(text)
    if text.lower() in UNKNOWN or (codes and text in ("-1", "-1.0")):
        expect(stored is None, f"{text!r} became {stored}")
        return
    expect(number is not None, f"{text!r} is no number and became {stored}")
    assert number is not None
    unit = (number[2] or bare).strip().lower()
    expect(unit in UNITS or unit == "k", f"{text!r} has no unit that is one and became {stored}")
    value = float(number[1]) - 273.15 if unit == "k" else float(number[1]) * UNITS[unit] / UNITS[target]
    slack = 0.51 if target in ("mw", "%") or (target in ("mhz", "c") and stored == int(stored or 0)) else 0.0
    close = stored is not None and math.isclose(stored, value, rel_tol=1e-9, abs_tol=slack + 1e-9)
    expect(close, f"{text!r} in {unit} became {stored} {target}")


def judge_time(text: str, stored: datetime | None, *, codes: bool) -> None:
    if text.lower() in UNKNOWN or (codes and text in ("-1", "-1.0")):
        expect(stored is None, f"time {text!r} became {stored}")
        return
    expect(stored is not None, f"time {text!r} was lost")
    assert stored is not None
    if re.fullmatch(r"\+?[0-9.]+", text):
        seconds = float(text)
        while seconds > 1e10:
            seconds /= 1000
    else:
        plain = re.sub(r"(\.[0-9]{6})[0-9]*", r"\1", text.replace("/", "-").replace(" ", "T", 1))
        moment = datetime.fromisoformat(plain)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    expect(abs(stored.replace(tzinfo=UTC).timestamp() - seconds) < 1e-3, f"time {text!r} became {stored}")


def judge_gpu(cells: dict[str, str], row: dict[str, object]) -> None:
    stored = str(row["gpu"])
    uuid = cells.get("uuid")
    if uuid is not None:
        plain = re.sub("-0+([0-9])", r"-\1", uuid) if not uuid.upper().startswith("GPU") else uuid
        same = stored.lower().removeprefix("gpu-") == plain.lower().removeprefix("gpu-")
        expect(same, f"GPU {uuid!r} became {stored!r}")
    elif "node" in cells and "device" in cells:
        node = cells["node"].lstrip("0") or "0"
        parts = [
            cells.get("cabinet", ""),
            node if node.isdigit() else cells["node"],
            cells["device"].lstrip("0") or "0",
        ]
        expect(stored.endswith("-".join(parts[1:])), f"place {parts} became {stored!r}")


def proven(cells: dict[str, str], time: float) -> bool:
    """Whether a duration in ms is what the row's own kernel starts say, whatever became of its decimal point."""
    try:
        first, last, kernels = (float(cells[name]) for name in ("kern_min_start", "kern_max_start", "num_kerns"))
    except (KeyError, ValueError):
        return False
    span = (last - first) * 1000
    return (
        kernels > 1
        and "train_time" not in cells
        and any(abs(time / s - 1) < 0.05 for s in (span, span / (kernels - 1)))
    )


def judge(case: Case, data: bytes, found: Parsed) -> None:
    """Raise WrongError where a row is unaccounted for or a stored value has another meaning than its text."""
    names, _, cut = data_lines(data)
    lower = [name.lower() for name in names]
    rows = list(found.frame.iter_rows(named=True))
    refused = [line for lines in found.report.refusals.values() for line in lines]
    lines = [row[LINE] for row in rows] + found.duplicates + refused
    expect(len(lines) == len(set(lines)), "a line is listed twice")
    expect(set(lines) == set(cut), f"lines unaccounted for or invented: {set(lines) ^ set(cut)}")
    expect(found.report.total.rows == len(cut), "rows are miscounted")
    first = 1 if names[0] in ("", "Unnamed: 0") else 0
    kept, before, twins = {row[LINE] for row in rows}, set(), set()
    for line, cells in cut.items():
        own = tuple(cells or ())[first:]
        expect(line not in found.duplicates or own in before, f"line {line} is no duplicate")
        expect(line not in kept or own not in twins, f"line {line} is a duplicate that was missed")
        before.add(own)
        if line in kept:
            twins.add(own)
    runs = found.kind == "runs"
    for meaning, (column, usual, bare, target) in (RUNS if runs else TELEMETRY).items():
        place = position(names, usual)
        if place is None:
            stored = found.frame[column] if column in found.frame.columns else None
            expect(stored is None or stored.null_count() == len(stored), f"{meaning} came from nowhere")
            continue
        at, unit = place
        true = kind_of(case.truth[at].strip(), case.file) if len(case.truth) == len(names) else ""
        every = [NUMBER.match(cells[at]) for cells in cut.values() if cells is not None and len(cells) == len(names)]
        values = [float(number[1]) for number in every if number is not None]
        if any(row[column] is not None for row in rows) and true not in (*KINDS.get(meaning, (true,)), ""):
            low, high = PLAUSIBLE.get(bare, (1, 0))  # numbers that could be what the header says cannot be noticed
            # A duration is proven by other columns, where the damage left them.
            proof = {"kern_min_start", "kern_max_start", "num_kerns"} <= set(lower) or "perf_s" in lower
            fine = low <= median(values) <= high if meaning != "time" else case.swapped or not proof
            expect(fine, f"{meaning} was read from {case.truth[at]!r}")
        fields = [cells[at] for row in rows if (cells := cut[row[LINE]]) is not None]
        beside = [m[2].lower() for text in fields if (m := NUMBER.match(text)) and m[2]]
        if meaning == "time" and not unit and len(beside) * 2 <= len(fields):
            bare = true if true in ("s", "ms") else "ms"
        elif beside and not unit and len(beside) * 2 > len(fields):
            bare = max(set(beside), key=beside.count)
        for row, text in zip(rows, fields, strict=True):
            cells = cut[row[LINE]]
            if (
                meaning != "time"
                or unit
                or cells is None
                or not proven(dict(zip(lower, cells, strict=True)), row[column])
            ):
                judge_value(text, row[column], unit or bare, target, codes=runs)
    stamp = position(names, ("ts", "timestamp") if runs else ("timestamp",))
    for row in rows:
        cells = cut[row[LINE]]
        assert cells is not None
        if stamp is not None:
            judge_time(cells[stamp[0]], row["began" if runs else "ts"], codes=runs)
        judge_gpu(dict(zip(lower, cells, strict=True)), row)


def unpacked(packed: bytes, data: bytes) -> bytes:
    """What a reader of the packed bytes sees: zstd as written here has no checksum, so it can be other text."""
    if packed[:4] != b"\x28\xb5\x2f\xfd":
        return data
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            return bytes(stream.read())
    except OSError:
        return data


def run(folder: Path, seed: int, count: int, store: Store | None) -> dict[str, object]:
    bases = sorted(folder.glob("*.csv"))
    kept = refused = 0
    failures = []
    for number in range(seed, seed + count):
        case = damaged(bases, number)
        data = case.text()
        path = folder / f"case-{seed}" / case.file
        path.parent.mkdir(exist_ok=True)
        packed = case.pack(data)
        path.write_bytes(packed)
        data = unpacked(packed, data)
        try:
            found = read_file(path, Options())
            kept += 1
            if data.strip():
                judge(case, data, found)
        except WhorlError as error:
            refused += 1
            found = None
            if path.name not in str(error) or "\n" in str(error):
                failures.append({"seed": number, "damage": case.done, "what": f"unclear: {error}"})
        except Exception as error:
            failures.append({"seed": number, "damage": case.done, "what": f"{type(error).__name__}: {error}"[:300]})
            continue
        if store is not None:
            failures += [{"seed": number, "damage": case.done, "what": w} for w in stored(store, path, number, found)]
    return {"tried": count, "kept": kept, "refused": refused, "failures": failures}


def stored(store: Store, path: Path, number: int, found: Parsed | None) -> list[str]:
    """What is wrong with the store after a case was imported, twice."""
    options = Options(cluster=f"c{number}", gpu=None if found is None or found.kind == "runs" else f"g{number}")
    try:
        report = import_file(store, path, options)
    except WhorlError as error:
        return [] if found is None else [f"it could be parsed and not stored: {error}"]
    if found is None:
        return ["it could be stored and not parsed"]
    wrong = []
    if report.total.as_dict() != found.report.total.as_dict():
        wrong.append(f"accounts differ: {report.total} and {found.report.total}")
    where, key = ("runs", "cluster") if found.kind == "runs" else ("telemetry", "import_id")
    imports = store.arrow("imports").to_pylist()
    mine = [row for row in imports if row["cluster"] == options.cluster]
    if sum(row["rows"] for row in mine) != report.total.rows or sum(row["kept"] for row in mine) != report.total.kept:
        wrong.append("the account in `imports` differs from the report")
    value = options.cluster if where == "runs" else mine[0]["import_id"]
    if store.arrow(where)[key].to_pylist().count(value) != report.total.kept:
        wrong.append("not every kept row is in the store")
    if not import_file(store, path, options).already:
        wrong.append("the second import was not noticed")
    return wrong


if __name__ == "__main__":
    place, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    target = Store.create(sys.argv[4]) if len(sys.argv) > 4 else None
    json.dump(run(place, seed, count, target), sys.stdout)
