"""Which GPU a row is about: a UUID, a place (cabinet-node-device), or a name that was given.

The result is six columns: `=gpu` (the key), `=uuid`, `=place`, `=cabinet`, `=node`, `=slot`.
"""

from __future__ import annotations

import polars as pl

from ...errors import InputError
from .content import LINE, Sheet
from .layout import Bound
from .values import Seen, is_placeholder

_HEX = "[0-9a-fA-F]"
# How an identity may look: the name of the form and its pattern. The first form that most rows have counts.
_FORMS = {
    "UUID": f"^(?:GPU-|MIG-)?{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "place (cabinet-node-device)": r"^[A-Za-z]+[0-9]*-[A-Za-z0-9]+-[0-9]{1,2}$",
    "hardware id": f"^(?:0[xX])?{_HEX}{{12,32}}$",
}
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:/@ -]{0,127}$"
_CABINET = r"^[A-Za-z]{1,8}-?[0-9]{0,4}$"
_NODE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def drop_duplicates(sheet: Sheet) -> list[int]:
    """Drop rows that repeat an earlier one in every named column; returns their line numbers.

    Whole rows only: two runs that differ in any field are two runs.
    """
    again = sheet.frame.select(~pl.struct(sheet.names).is_first_distinct()).to_series()
    lines: list[int] = sheet.frame.filter(again)[LINE].to_list()
    sheet.frame = sheet.frame.filter(~again)
    return lines


def of_runs(sheet: Sheet, bound: dict[str, Bound], seen: Seen, *, given: str | None, mapped: bool) -> None:
    """Add the identity columns to a sheet of runs. Raises InputError where the file names no GPU.

    `given` is --gpu; it counts where the file has no identity of its own. `mapped` says that the person named
    the column, so that any name will do.
    """
    _places(sheet, bound, seen)
    if "gpu" in bound:
        _named(sheet, bound["gpu"].column, mapped=mapped)
    elif {"cabinet", "node", "slot"} <= bound.keys():
        sheet.refuse(pl.col("=place").is_null(), "no GPU identity (its place is unknown)")
        place = pl.col("=place")
        sheet.frame = sheet.frame.with_columns(place.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
    elif given is not None:
        _constant(sheet, given)
    else:
        raise InputError(
            f"{sheet.file} does not say which GPU a row is about (no uuid, no cabinet with node and device); "
            f"name the column with --map COLUMN=gpu, or the GPU with --gpu NAME"
        )
    _check_places(sheet, seen)


def of_telemetry(sheet: Sheet, bound: dict[str, Bound], *, given: str | None, mapped: bool) -> str:
    """Add the identity columns to a sheet of telemetry and say where the GPU was taken from."""
    empty = [pl.lit(None, pl.String).alias(c) for c in ("=place", "=cabinet", "=node")]
    sheet.frame = sheet.frame.with_columns(*empty, pl.lit(None, pl.Int64).alias("=slot"))
    if "gpu" in bound:
        _named(sheet, bound["gpu"].column, mapped=mapped)
        return f"column {bound['gpu'].column!r}"
    stem = given or sheet.file.split(".")[0]
    if "index" in bound:
        name = bound["index"].column
        refuse_strange(sheet, name, ~pl.col(name).str.contains("^[0-9]{1,3}$"), "index of a GPU")
        # An index names a GPU on its own host only: the file's name keeps those of two hosts apart.
        gpu = pl.lit(f"{stem}:") + pl.col(name).cast(pl.Int64).cast(pl.String)
        sheet.frame = sheet.frame.with_columns(gpu.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
        return f"column {name!r} (as {stem}:index)"
    _constant(sheet, stem)
    return "--gpu" if given else "the file's name (--gpu NAME names it)"


def _constant(sheet: Sheet, name: str) -> None:
    sheet.frame = sheet.frame.with_columns(pl.lit(name).alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))


def _places(sheet: Sheet, bound: dict[str, Bound], seen: Seen) -> None:
    """`=cabinet`, `=node` (unique within the cluster), `=slot`, `=place` from the columns that say them."""
    for key, pattern in (("cabinet", _CABINET), ("node", _NODE), ("slot", "^[0-9]{1,2}$")):
        if key not in bound:
            sheet.frame = sheet.frame.with_columns(pl.lit(None, pl.String).alias(f"={key}"))
            continue
        name, meant = bound[key].column, bound[key].meaning.description
        unknown = is_placeholder(name, minus_one=True)
        refuse_strange(sheet, name, ~unknown & ~pl.col(name).str.contains(pattern), meant)
        missing = sheet.frame.filter(unknown).height
        if missing:
            seen.placeholders[name] = missing
        sheet.frame = sheet.frame.with_columns(pl.when(~unknown).then(pl.col(name)).alias(f"={key}"))
    cabinet, node = pl.col("=cabinet"), pl.col("=node")
    # "004" and 4 are one node; a number is unique only together with its cabinet, a host name by itself.
    number = node.str.extract("^0*([0-9]+)$", 1)
    host = pl.when(number.is_null()).then(node).otherwise(cabinet + "-" + number)
    sheet.frame = sheet.frame.with_columns(host.alias("=node"), pl.col("=slot").cast(pl.Int64))
    place = pl.col("=node") + "-" + pl.col("=slot").cast(pl.String)
    sheet.frame = sheet.frame.with_columns(place.alias("=place"))


def _named(sheet: Sheet, name: str, *, mapped: bool) -> None:
    """`=gpu` and `=uuid` from a column of identities, all of one form."""
    text = pl.col(name)
    if sheet.frame.height == 0:
        sheet.frame = sheet.frame.with_columns(text.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
        return
    forms = _FORMS | ({"name": _NAME} if mapped else {})
    for form, pattern in forms.items():  # noqa: B007 - the last form is kept where none fits
        fits = int(sheet.frame[name].str.contains(pattern).sum())
        if fits * 2 > sheet.frame.height:
            break
    else:
        raise InputError(
            f"{sheet.file}: column {name!r} does not hold the identity of a GPU: line {sheet.frame[0, LINE]} "
            f"has {sheet.frame[0, name]!r}; the columns look shifted or renamed (--map COLUMN=gpu takes any name)"
        )
    sheet.refuse(~text.str.contains(pattern), f"{name} is no {form}")
    gpu, uuid = text, pl.lit(None, pl.String)
    if form == "UUID":
        # The driver writes GPU-... in lower case; some tools drop the prefix.
        lower = text.str.to_lowercase()
        bare = ~lower.str.contains("^(gpu|mig)-")
        gpu = (
            pl.when(bare).then("GPU-" + lower).otherwise(lower.str.slice(0, 4).str.to_uppercase() + lower.str.slice(4))
        )
        uuid = gpu
    elif form.startswith("place"):
        gpu = text.str.replace("-0+([0-9]+)-", "-${1}-")
    sheet.frame = sheet.frame.with_columns(gpu.alias("=gpu"), uuid.alias("=uuid"))
    if form.startswith("place"):
        place = pl.col("=place")
        sheet.refuse(
            place.is_not_null() & (place != pl.col("=gpu")),
            f"{name} contradicts the row's cabinet, node and device",
        )
        parts = pl.col("=gpu").str.extract_groups(r"^(.*)-([0-9]+)$")
        node, slot = parts.struct[0], parts.struct[1].cast(pl.Int64)
        sheet.frame = sheet.frame.with_columns(
            pl.col("=gpu").alias("=place"),
            pl.coalesce("=node", node).alias("=node"),
            pl.coalesce("=slot", slot).alias("=slot"),
            pl.coalesce("=cabinet", node.str.extract("^(.*)-[^-]+$", 1)).alias("=cabinet"),
        )


def _check_places(sheet: Sheet, seen: Seen) -> None:
    """Do not believe a device column that puts two GPUs in one place."""
    pairs = sheet.frame.filter(pl.col("=place").is_not_null()).select("=place", "=gpu").unique()
    crowded = pairs["=place"].is_duplicated().sum()
    if crowded:
        example = pairs.filter(pairs["=place"].is_duplicated())[0, "=place"]
        seen.notes.append(
            f"several GPUs claim one place (for example {example}): the device column is not believed, "
            f"places are left out"
        )
        empty = [pl.lit(None, pl.String).alias("=place"), pl.lit(None, pl.Int64).alias("=slot")]
        sheet.frame = sheet.frame.with_columns(*empty)


def refuse_strange(sheet: Sheet, name: str, bad: pl.Expr, meant: str) -> None:
    """Refuse rows whose field has the wrong form; the file where that is most rows."""
    wrong = sheet.frame.filter(bad)
    if wrong.height * 2 > sheet.frame.height:
        raise InputError(
            f"{sheet.file}: column {name!r} does not hold a {meant}: line {wrong[0, LINE]} has "
            f"{wrong[0, name]!r}; the columns look shifted or renamed"
        )
    sheet.refuse(bad, f"{name} is no {meant}")
