"""Which GPU a row is about: a UUID, a place (cabinet-node-device), or a name that was given.

The result is six columns: `=gpu` (the key), `=uuid`, `=place`, `=cabinet`, `=node`, `=slot`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from ...errors import InputError
from ..names import known_gpu
from .content import LINE, RECORD, Sheet
from .layout import Bound
from .meanings import BOARD
from .options import Options, typed
from .values import Seen, is_placeholder

_HEX = "[0-9a-fA-F]"
# The forms of an identity: name and pattern. The first form that most rows have is used.
_FORMS = {
    "UUID": f"(?i)^(?:GPU-|MIG-)?{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "place (cabinet-node-device)": r"^[A-Za-z]+[0-9]*-[A-Za-z0-9]+-[0-9]{1,2}$",
    "hardware id": f"^(?:GPU-)?(?:0[xX])?{_HEX}{{12,32}}$",
}
_NUMBER = "(?i)^(?:(?:gpu|card|nvidia|device|cuda|accel)[ _:-]?)?([0-9]{1,3})$"  # of a GPU on its node: 3, card3
_SAID = {"gpu": "UUIDs", "index": "numbers", "serial": "serial numbers", "pci_bus_id": "PCI addresses"}
_CROWDED = 20  # a device column is believed if fewer than one place in this many has two GPUs
CLUSTER = ("cluster", "cluster_name")  # columns that say of which cluster a row is: --cluster says it of all
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:/@ -]{0,127}$"
_CABINET = r"^[A-Za-z]{1,8}-?[0-9]{1,4}$"
_NODE = (
    r"^(?:[0-9]{1,5}(?:\.0+)?|[A-Za-z0-9._-]{0,40}[A-Za-z][A-Za-z0-9._-]{0,40})$"  # a number, or a name with a letter
)


def row_texts(sheet: Sheet) -> pl.Series:
    """Each row as one text: equal where all named columns are."""
    names = [*sheet.names, RECORD] if RECORD in sheet.frame.columns else sheet.names
    return sheet.frame.select(pl.concat_str(names, separator="\x1f")).to_series()


def drop_duplicates(sheet: Sheet) -> list[int]:
    """Drop rows that repeat an earlier row in all fields. Returns their line numbers.

    Only whole rows are compared: two runs that differ in any field are two runs.
    """
    named = sheet.frame.drop(LINE)
    if named.hash_rows().is_unique().all():  # the texts of all rows need much memory
        return []
    first = row_texts(sheet).is_first_distinct()
    if first.all():
        return []
    lines: list[int] = sheet.frame[LINE].filter(~first).to_list()
    sheet.frame = sheet.frame.filter(first)
    return lines


def of_runs(sheet: Sheet, bound: dict[str, Bound], seen: Seen, options: Options) -> None:
    """Add the identity columns to a sheet of runs. Raises InputError where the file names no GPU.

    --gpu is used only if the file has no identity of its own. In a column that --map names, a GPU may have any name.
    """
    if "index" in bound:
        sheet.frame = sheet.frame.with_columns(*_nothing("place", "cabinet"), *_on_node(bound, options))
        _slot(sheet, bound["index"], by_uuid="gpu" in bound)
    else:
        _places(sheet, bound, seen)
    if {"gpu", "slot"} & bound.keys():
        _note_unused(seen, options)
    if "gpu" in bound:
        _named(sheet, bound["gpu"], options)
        _numbers_alone(sheet, bound["gpu"], seen)
    elif "index" in bound and not _one_of_name(sheet, seen, options):
        seen.notes.append(f"the GPU is taken from {_by_index(sheet, bound['index'], options)}")
        _by_address(sheet, bound, options)
    elif "index" in bound:
        pass  # --gpu names it
    elif {"node", "slot"} <= bound.keys():
        sheet.refuse((pl.col("=place").is_null(), "no GPU identity (its place is unknown)"))
        place = pl.col("=place")
        sheet.frame = sheet.frame.with_columns(place.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
    elif options.gpu is not None:
        nodes = sheet.frame["=node"].drop_nulls().unique(maintain_order=True)
        if len(nodes) > 1:
            raise InputError(
                f"{sheet.file} has runs on node {nodes[0]} and on node {nodes[1]}, so they are not of one GPU, as "
                "--gpu says; name the column that has the GPU with --map COLUMN=gpu (COLUMN=index if it is a number)"
            )
        _constant(sheet, _known(sheet, options.gpu, seen, options))
    else:
        raise InputError(
            f"{sheet.file} does not name the GPU of each row (no uuid, no node with device); "
            f"name the column with --map COLUMN=gpu (COLUMN=index if it numbers the GPUs of a node), or the GPU with "
            f"--gpu NAME"
        )
    if {"gpu", "slot"} <= bound.keys():
        _check_places(sheet, seen)


def of_one_cluster(sheet: Sheet, seen: Seen, options: Options) -> None:
    """Refuse rows of several clusters that have GPUs of the same name, and tell of other rows of several clusters."""
    for column in (name for name in sheet.frame.columns if name.lower() in CLUSTER):
        rows = sheet.frame.filter(~is_placeholder(column, minus_one=False)).with_columns(
            pl.col(column).str.strip_chars().str.to_lowercase()
        )
        clusters = rows[column].unique().sort()
        if len(clusters) < 2:
            continue
        what = f"column {column!r} has rows of {clusters[0]} and of {clusters[1]}"
        how = "split the file, and import each part with --cluster NAME"
        of = (
            rows.filter(pl.col("=uuid").is_null())
            .group_by("=gpu")
            .agg(pl.col(column).n_unique())
            .filter(pl.col(column) > 1)
            .sort("=gpu")
        )
        if of.height:
            raise InputError(f"{sheet.file}: {what}, and both have a GPU {of['=gpu'][0]}: {how}")
        seen.notes.append(f"{what}, and all are stored as of cluster {options.cluster}: if they differ, {how}")


def _one_of_name(sheet: Sheet, seen: Seen, options: Options) -> bool:
    """Whether a sheet has one GPU, and --gpu names it: then its number, which is that in the process, says nothing."""
    if options.gpu is None or sheet.frame.select(pl.struct("=node", "=slot").n_unique()).item() > 1:
        return False
    sheet.frame = sheet.frame.with_columns(_nothing("slot"))
    _constant(sheet, _known(sheet, options.gpu, seen, options))
    return True


def _by_address(sheet: Sheet, bound: dict[str, Bound], options: Options) -> None:
    """The GPU that the store knows at a PCI address of the node. CUDA may number GPUs otherwise than the driver."""
    known = {place.upper(): key for key, place in options.addresses().items()}
    if "pci_bus_id" not in bound or not known:
        return
    address = (pl.col("=node") + " " + pl.col(bound["pci_bus_id"].column)).str.to_uppercase()
    found = address.is_in(list(known)).fill_null(False)
    sheet.frame = sheet.frame.with_columns(
        pl.when(found).then(address.replace(known)).otherwise("=gpu").alias("=gpu"),
        pl.when(~found).then("=slot").alias("=slot"),
    )


def of_telemetry(sheet: Sheet, bound: dict[str, Bound], seen: Seen, options: Options) -> str:
    """Add the GPU of each row to a sheet of telemetry and say where it was taken from."""
    if "instance" not in bound:
        return _of_gpus(sheet, bound, seen, options)
    whole = is_placeholder(bound["instance"].column, minus_one=False)
    instances = sheet.frame.filter(~whole)
    sheet.frame = sheet.frame.filter(whole)
    source = _of_gpus(sheet, bound, seen, options)
    parts = _of_instances(instances, bound, _stem(sheet, options), options)
    sheet.frame = pl.concat([sheet.frame, parts], how="diagonal_relaxed").sort(LINE)
    return source


def _of_instances(frame: pl.DataFrame, bound: dict[str, Bound], stem: str, options: Options) -> pl.DataFrame:
    """MIG instances: named after their GPU where its UUID is known, else after their host; `=parent` is the GPU."""
    frame = frame.with_columns(*_nothing("place", "cabinet"), *_on_node(bound, options))
    host, parent, uuid = pl.coalesce("=node", pl.lit(stem)), pl.lit(None, pl.String), pl.lit(None, pl.String)
    base = host
    if "gpu" in bound:
        said = pl.col(bound["gpu"].column).str.to_lowercase()
        known = said.str.contains(_FORMS["UUID"])
        parent = pl.when(known & said.str.starts_with("gpu-")).then("GPU-" + said.str.slice(4))
        uuid = pl.when(known & said.str.starts_with("mig-")).then("MIG-" + said.str.slice(4))
        base = pl.coalesce(parent, host)
    elif "index" in bound:
        number = pl.col(bound["index"].column).str.extract(_NUMBER, 1)
        parent = pl.when(number.is_not_null()).then(_key(host, number, options))
    own = pl.coalesce(uuid, base + ":" + pl.col(bound["instance"].column))
    return frame.with_columns(parent.alias("=parent"), uuid.alias("=uuid"), own.alias("=gpu"))


def _of_gpus(sheet: Sheet, bound: dict[str, Bound], seen: Seen, options: Options) -> str:
    sheet.frame = sheet.frame.with_columns(*_nothing("place", "cabinet"), *_on_node(bound, options))
    if "index" in bound:
        _slot(sheet, bound["index"], by_uuid="gpu" in bound)
    if "gpu" in bound:
        _note_unused(seen, options)
        _named(sheet, bound["gpu"], options)
        _numbers_alone(sheet, bound["gpu"], seen)
        return _where(sheet, bound["gpu"])
    stem = _stem(sheet, options)
    if "index" in bound:
        return _by_index(sheet, bound["index"], options)
    for key in ("serial", "pci_bus_id"):
        if key in bound and sheet.frame[bound[key].column].n_unique() > 1:
            name = bound[key].column
            sheet.refuse((is_placeholder(name, minus_one=False), f"{name} is missing"))
            gpu = pl.lit(f"{stem}:") + pl.col(name)
            sheet.frame = sheet.frame.with_columns(gpu.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
            return f"{_where(sheet, bound[key])} (as {stem}:{key})"
    _constant(sheet, stem if options.gpu is None else _known(sheet, stem, seen, options))
    return "--gpu" if options.gpu else "the file's name (--gpu NAME names it)"


def _slot(sheet: Sheet, bound: Bound, *, by_uuid: bool) -> None:
    index = bound.column
    strange = ~pl.col(index).str.contains(_NUMBER)
    if by_uuid:  # then the index only adds the place
        strange &= ~is_placeholder(index, minus_one=False)
    refuse_strange(sheet, (index, strange, "index of a GPU"))
    number = pl.col(index).str.extract(_NUMBER, 1)
    sheet.frame = sheet.frame.with_columns(number.cast(pl.Int64, strict=False).alias("=slot"))


def _stem(sheet: Sheet, options: Options) -> str:
    return options.gpu or sheet.file.split(".")[0] or "stream"


def _by_index(sheet: Sheet, bound: Bound, options: Options) -> str:
    """`=gpu` from `=slot` and the host, else the file's name: an index names a GPU on its own host only."""
    stem = _stem(sheet, options)
    gpu = _key(pl.coalesce("=node", pl.lit(stem)), pl.col("=slot").cast(pl.String), options)
    sheet.frame = sheet.frame.with_columns(gpu.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
    if sheet.frame["=node"].count():
        return f"{_where(sheet, bound)} (as node:index)"
    advice = "" if options.gpu else "; the file names no host: --node NAME gives it"
    return f"{_where(sheet, bound)} (as {stem}:index){advice}"


def _where(sheet: Sheet, bound: Bound) -> str:
    """Where a file names its GPUs. A column of a format has the name of its meaning, which the file does not have."""
    if sheet.format and bound.column == bound.meaning.name:
        return f"the {_SAID[bound.column]} that {sheet.format} has"
    return f"column {bound.column!r}"


def _key(host: pl.Expr, number: pl.Expr, options: Options) -> pl.Expr:
    """The key of a GPU: that of the GPU which the store knows there, else host and number."""
    keys = {name: key for key, name in options.known().items()}
    spoken = host + "/" + number
    return pl.when(spoken.is_in(list(keys))).then(spoken.replace(keys)).otherwise(host + ":" + number)


def _on_node(bound: dict[str, Bound], options: Options) -> list[pl.Expr]:
    """`=node` of a stream's rows, and no `=slot` yet."""
    node = pl.lit(options.node, pl.String)
    if "node" in bound:
        name = bound["node"].column
        node = pl.coalesce(pl.when(~is_placeholder(name, minus_one=False)).then(pl.col(name)), node)
    return [node.alias("=node"), *_nothing("slot")]


def of_jobs(sheet: Sheet, bound: Bound, options: Options) -> None:
    """Add the identity columns to a sheet of allocations of GPUs, which may have any name."""
    sheet.frame = sheet.frame.with_columns(_nothing("place", "cabinet", "node", "slot"))
    _named(sheet, replace(bound, mapped=True), options)


def of_board(bound: dict[str, Bound], options: Options) -> list[pl.Expr]:
    """What a file says about the GPUs themselves, for the table `gpus`: the columns `BOARD`."""
    columns = {key: bound[key].column for key in BOARD if key in bound}
    known = [
        pl.when(~is_placeholder(name, minus_one=False)).then(pl.col(name)).alias(key) for key, name in columns.items()
    ]
    said = {"model": options.model}
    return known + [pl.lit(said.get(key), pl.String).alias(key) for key in BOARD if key not in columns]


def _nothing(*keys: str) -> list[pl.Expr]:
    return [pl.lit(None, pl.Int64 if key == "slot" else pl.String).alias(f"={key}") for key in keys]


def _without_zeros(name: pl.Expr) -> pl.Expr:
    """`c197-001-0` and `c197-1-0` are one place."""
    return name.str.replace_all("-0+([0-9])", "-${1}")


def _constant(sheet: Sheet, name: str) -> None:
    uuid = _uuid(pl.lit(name)) if re.match(_FORMS["UUID"], name) else pl.lit(None, pl.String)
    sheet.frame = sheet.frame.with_columns(pl.coalesce(uuid, pl.lit(name)).alias("=gpu"), uuid.alias("=uuid"))


def _uuid(text: pl.Expr) -> pl.Expr:
    """A UUID as the driver writes it, GPU-... in lower case; some tools drop the prefix."""
    lower = text.str.to_lowercase()
    prefix = pl.when(lower.str.starts_with("mig-")).then(pl.lit("MIG-")).otherwise(pl.lit("GPU-"))
    return prefix + lower.str.replace("^(?:gpu|mig)-", "")


def _places(sheet: Sheet, bound: dict[str, Bound], seen: Seen) -> None:
    """`=cabinet`, `=node` (unique within the cluster), `=slot`, `=place` from the columns that say them."""
    named = "cabinet" in bound and bound["cabinet"].mapped
    patterns = {"cabinet": _NODE if named else _CABINET, "node": _NODE, "slot": r"^[0-9]{1,2}(?:\.0+)?$"}
    stated = [bound[key] for key in patterns if key in bound]
    unknown = {b.meaning.name: is_placeholder(b.column, minus_one=True) for b in stated}
    for item, missing in zip(stated, sheet.counts(*unknown.values()), strict=True):
        if missing:
            seen.placeholders[item.column] = missing
    rules = []
    for item in stated:
        strange = ~unknown[item.meaning.name] & ~pl.col(item.column).str.contains(patterns[item.meaning.name])
        rules.append((item.column, strange, item.meaning.description))
    refuse_strange(sheet, *rules)
    # If a row of the column is empty, some tools write the whole number 4 as 4.0.
    plain = {b.meaning.name: pl.col(b.column).str.replace(r"^([0-9]+)\.0+$", "${1}") for b in stated}
    known = [pl.when(~unknown[key]).then(text).alias(f"={key}") for key, text in plain.items()]
    sheet.frame = sheet.frame.with_columns(*known, *_nothing(*(key for key in patterns if key not in bound)))
    cabinet, node, slot = pl.col("=cabinet"), pl.col("=node"), pl.col("=slot").cast(pl.Int64)
    # "004" and 4 are one node; where there are cabinets, a number is unique only together with its own.
    number = node.str.extract("^0*([0-9]+)$", 1)
    numbered = cabinet + "-" + number if "cabinet" in bound else number
    # The name of a host stays as it is: the batch system and telemetry know `gpu-007` by no other name.
    host = pl.when(number.is_null()).then(node).otherwise(numbered)
    place = _without_zeros(host) + "-" + slot.cast(pl.String)
    sheet.frame = sheet.frame.with_columns(host.alias("=node"), slot, place.alias("=place"))


def _note_unused(seen: Seen, options: Options) -> None:
    if options.gpu is not None:
        seen.notes.append("the file names its GPUs, so --gpu is not used")


def _known(sheet: Sheet, said: str, seen: Seen, options: Options) -> str:
    """The key of the GPU that --gpu means: one that the store knows, else a new one of that name."""
    known = options.known()
    if said in known:
        return said
    try:
        # A name that somebody gave has no parts: `v1` is not `v10`.
        gpu = known_gpu(said, {key: (name,) for key, name in known.items() if name != key or key[:4] == "GPU-"})
    except InputError as error:
        raise InputError(f"{sheet.file}: --gpu {error}") from error
    if gpu is None:
        return said
    if gpu != said:
        seen.notes.append(
            f"--gpu {said} is the GPU {known[gpu]} of the store" + (f" ({gpu})" if known[gpu] != gpu else "")
        )
    return gpu


def _named(sheet: Sheet, bound: Bound, options: Options) -> None:
    """`=gpu` and `=uuid` from a column of identities, all of one form."""
    name = bound.column
    text = pl.col(name)
    forms = _FORMS | ({"name": _NAME} if bound.mapped else {})
    fits = sheet.counts(*(text.str.contains(pattern) for pattern in forms.values()))
    form = next((form for form, number in zip(forms, fits, strict=True) if number * 2 > sheet.frame.height), None)
    if form is None and sheet.frame.height:
        first = sheet.frame.row(0, named=True)
        raise InputError(
            f"{sheet.file}: column {name!r} does not hold the identity of a GPU: line {sheet.line(first[LINE])} "
            f"has {first[name]!r}; the columns look shifted or renamed ({typed('--map', name, 'gpu')} accepts any name)"
        )
    form = form or "UUID"
    if fits[list(forms).index(form)] < sheet.frame.height:
        sheet.refuse((~text.str.contains(forms[form]), f"{name} is not a {form}"))
    if form == "UUID":
        uuid = _uuid(text)
        sheet.frame = sheet.frame.with_columns(uuid.alias("=gpu"), uuid.alias("=uuid"))
        return
    if not form.startswith("place"):
        if form == "hardware id":
            text = (
                pl.when(text.str.starts_with("GPU-"))
                .then("GPU-" + text.str.slice(4).str.to_lowercase())
                .otherwise(text.str.to_lowercase())
            )
        if form == "name":
            _not_numbers(sheet, name)
        if form == "name" and sheet.frame[name].str.contains("/", literal=True).any():
            keys: dict[str, list[str]] = {}
            for key, spoken in options.known().items():
                keys.setdefault(spoken, []).append(key)
            text = text.replace({spoken: own[0] for spoken, own in keys.items() if len(own) == 1})
        sheet.frame = sheet.frame.with_columns(text.alias("=gpu"), pl.lit(None, pl.String).alias("=uuid"))
        return
    gpu, place = _without_zeros(text), pl.col("=place")
    refuse_strange(sheet, (name, (place != gpu).fill_null(False), "place that the row's cabinet, node and device give"))
    parts = gpu.str.extract_groups(r"^((.*)-[^-]+)-([0-9]+)$").struct
    sheet.frame = sheet.frame.with_columns(
        gpu.alias("=gpu"),
        gpu.alias("=place"),
        pl.lit(None, pl.String).alias("=uuid"),
        pl.coalesce("=node", parts[0]).alias("=node"),
        pl.coalesce("=cabinet", parts[1]).alias("=cabinet"),
        pl.coalesce("=slot", parts[2].cast(pl.Int64)).alias("=slot"),
    )


def _not_numbers(sheet: Sheet, column: str) -> None:
    """Refuse a file that numbers the GPUs of each node in this column: GPU 0 of one node is not GPU 0 of another.

    Where a file is of one node, the number says nothing else: the file of another node has the same ones.
    """
    numbers = sheet.frame.filter(pl.col(column).str.contains(_NUMBER) & pl.col("=node").is_not_null())
    every = numbers["=node"].unique().sort()
    nodes = numbers.group_by(column).agg(pl.col("=node").unique().sort()).filter(pl.col("=node").list.len() > 1)
    for number, (first, second, *_) in nodes.sort(column).head(1).iter_rows():
        raise InputError(
            f"{sheet.file}: column {column!r} has {number} on {first} and on {second}, so it numbers the GPUs of a "
            f"node: say {typed('--map', column, 'index')}"
        )
    if numbers.height and numbers.height == sheet.frame.height and len(every) == 1:
        raise InputError(
            f"{sheet.file}: column {column!r} has only numbers, such as {numbers[column][0]}, and all are of node "
            f"{every[0]}: say {typed('--map', column, 'index')}, as other nodes have GPUs of the same numbers"
        )


def _numbers_alone(sheet: Sheet, bound: Bound, seen: Seen) -> None:
    """Tell that GPUs are named by their numbers only. Of another file with the same numbers nobody could say more."""
    if sheet.frame.height and sheet.frame["=gpu"].str.contains(_NUMBER).all():
        seen.notes.append(
            f"the GPUs have no name but a number: one of the same number in another file is the same GPU; if "
            f"{bound.column!r} numbers the GPUs of a node, import it into a new store with "
            f"{typed('--map', bound.column, 'index')} --node NAME"
        )


def _check_places(sheet: Sheet, seen: Seen) -> None:
    """Do not believe a device column that puts two GPUs in one place.

    If only a place or two is concerned, a board was replaced or a row is damaged: only those places are left out. If it
    is common, the column means something else (in some files it is 0 on every row).
    """
    pairs = sheet.frame.filter(pl.col("=place").is_not_null()).select("=place", "=gpu").unique()
    crowded = pairs.filter(pairs["=place"].is_duplicated())["=place"].unique().sort()
    if not len(crowded):
        return
    every = len(crowded) * _CROWDED > pairs["=place"].n_unique()
    left_out = "the device column was not used, so all places were" if every else "these places are"
    seen.notes.append(
        f"several GPUs have the same place ({len(crowded)}, for example {crowded[0]}): {left_out} left out"
    )
    bad = pl.col("=place").is_not_null() if every else pl.col("=place").is_in(crowded.implode())
    kept = [pl.when(~bad.fill_null(False)).then(pl.col(c)).alias(c) for c in ("=place", "=slot")]
    sheet.frame = sheet.frame.with_columns(kept)


def refuse_strange(sheet: Sheet, *rules: tuple[str, pl.Expr, str]) -> None:
    """Refuse rows with a wrong field, and the file if most rows have one.

    A field: column, which rows, what it should be.
    """
    wrong = sheet.counts(*(bad for _, bad, _ in rules))
    for number, (name, bad, meant) in zip(wrong, rules, strict=True):
        if number * 2 > sheet.frame.height:
            first = sheet.frame.filter(bad).row(0, named=True)
            raise InputError(
                f"{sheet.file}: column {name!r} does not contain what its name says ({meant}): line "
                f"{sheet.line(first[LINE])} has {first[name]!r}; the columns look shifted or renamed (use --map to say "
                "what they are)"
            )
    if any(wrong):
        sheet.refuse(*((bad, f"{name} cannot be the {meant}") for name, bad, meant in rules))
