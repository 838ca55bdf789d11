"""Damage done to small files at random, for `mutations.py`: bytes, rows, columns, names, units, packing."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa


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
