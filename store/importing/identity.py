"""Which GPU a row is about: a UUID, a place (cabinet-node-device), the number on its node, or a name that was given.

A row has the first of these identities that its file states; one that lacks it, as the row of a lost GPU does, gets it
from other rows with the same number, serial or PCI address. The result is six columns: `=gpu` (the key), `=uuid`,
`=place`, `=cabinet`, `=node`, `=slot`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from ...errors import InputError
from ..names import known_gpu
from .content import LINE, RECORD, Sheet
from .meanings import BOARD, Bound
from .options import typed
from .times import EARLY, LATE, NS, add_instants
from .values import is_placeholder, stated

_HEX = "[0-9a-fA-F]"
_UUID_BODY = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
# Of a MIG instance, drivers until 465 write that of its GPU and two numbers.
_UUID = f"(?i)^(?:(?:GPU-|MIG-)?{_UUID_BODY}|MIG-GPU-{_UUID_BODY}/[0-9]+/[0-9]+)$"
_PLACE = r"^[A-Za-z]+[0-9]*-[A-Za-z0-9]+-[0-9]{1,2}$"  # cabinet-node-device
_HARDWARE_ID = f"^(?:GPU-)?(?:0[xX])?{_HEX}{{12,32}}$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:/@ -]{0,127}$"
_NUMBER = "(?i)^(?:(?:gpu|card|nvidia|device|cuda|accel)[ _:-]?)?([0-9]{1,3})$"  # of a GPU on its node: 3, card3
_ADDRESS = f"^(?:({_HEX}{{4,8}}):)?({_HEX}{{2}}:{_HEX}{{2}})(?:[.]{_HEX})?$"  # domain, bus and device, function
_SHOWN = {"gpu": "UUIDs", "index": "numbers", "serial": "serial numbers", "pci_bus_id": "PCI addresses"}
_CROWDED = 20  # a device column is believed if fewer than one place in this many has two GPUs
CLUSTER = ("cluster", "cluster_name")  # columns that say of which cluster a row is: --cluster says it of all
_CABINET = r"^[A-Za-z]{1,8}-?[0-9]{1,4}$"
_NODE = (
    r"^(?:[0-9]{1,5}(?:\.0+)?|[A-Za-z0-9._-]{0,40}[A-Za-z][A-Za-z0-9._-]{0,40})$"  # a number, or a name with a letter
)


def row_texts(sheet: Sheet) -> pl.Series:
    """Each row as one text: equal where all named columns are."""
    names = [*sheet.names, RECORD] if RECORD in sheet.frame.columns else sheet.names
    return sheet.frame.select(pl.concat_str(names, separator="\x1f")).to_series()


def drop_duplicates(sheet: Sheet, *, stamps: str = "") -> pl.Series:
    """Drop rows that repeat an earlier row in all fields, and count them as duplicates.

    Only whole rows are compared: two runs that differ in any field are two runs. Where the column `stamps` has a time
    in whole seconds, in an hour that occurs twice, equal rows may be of two times, and stay, unless rows of other hours
    are repeated too: then they are copies. Returns the LINE of each row that repeats another one and stays.
    """
    none = sheet.frame[LINE].clear()
    if sheet.frame.drop(LINE).hash_rows().is_unique().all():  # the texts of all rows need much memory
        return none
    again = sheet.frame.filter(~row_texts(sheet).is_first_distinct())
    repeated, staying = again[LINE], none
    if stamps:
        again = add_instants(again, stamps, sheet.options.time_zone)
        in_equal_hours = again[EARLY].ne_missing(again[LATE])
        if in_equal_hours.all():
            is_whole_second = (again[EARLY] % NS == 0).fill_null(False)
            repeated, staying = repeated.filter(~is_whole_second), repeated.filter(is_whole_second)
    sheet.duplicates += repeated.to_list()
    sheet.frame = sheet.frame.filter(~pl.col(LINE).is_in(repeated.implode()))
    return staying


def of_runs(sheet: Sheet) -> None:
    """Add the identity columns to a sheet of runs. Raises InputError where the file names no GPU."""
    source = _of_rows(sheet)
    if not source:
        raise InputError(
            f"{sheet.file} does not name the GPU of each row (no uuid, no node with device); "
            f"name the column with --map COLUMN=gpu (COLUMN=index if it numbers the GPUs of a node), or the GPU with "
            f"--gpu NAME"
        )
    if "index" in sheet.bound and "gpu" not in sheet.bound and source != "--gpu":
        sheet.notes.append(f"the GPU is taken from {source}")
    sheet.refuse((pl.col("=gpu").is_null(), "no GPU identity (its place is unknown)"))
    if {"gpu", "slot"} <= sheet.bound.keys():
        _check_places(sheet)


def of_telemetry(sheet: Sheet) -> str:
    """Add the GPU of each row to a sheet of telemetry and say where it was taken from, at last from the file's name.

    `=gpu` is NULL where nothing names the GPU: of rows of a GPU that is lost.
    """
    instances = sheet.frame.clear()
    if "instance" in sheet.bound:
        whole_gpu = is_placeholder(sheet.bound["instance"].column, minus_one=False)
        instances = sheet.frame.filter(~whole_gpu)
        sheet.frame = sheet.frame.filter(whole_gpu)
    source = _of_rows(sheet)
    if not source:
        source = "the file's name (--gpu NAME names it)"
        host = f"{sheet.options.node}:" if sheet.options.node is not None and sheet.options.gpu is None else ""
        _constant(sheet, f"{host}{_stem(sheet)}")
    if instances.height:
        instance_rows = _of_instances(instances, sheet)
        sheet.frame = pl.concat([sheet.frame, instance_rows], how="diagonal_relaxed").sort(LINE)
    return source


def _of_rows(sheet: Sheet) -> str:
    """Add the identity columns and say where the GPU was taken from; "" if nothing names it, and `=gpu` is not there.

    --gpu names the GPU of a file that has one GPU only, whatever else the file says of it but a UUID.
    """
    if "pci_bus_id" in sheet.bound:
        column = sheet.bound["pci_bus_id"].column
        places = {text: place for text in sheet.frame[column].unique() if (place := address(text)) != text}
        sheet.frame = sheet.frame.with_columns(pl.col(column).replace(places)) if places else sheet.frame
    if "serial" in sheet.bound:  # boards without a serial number may say 0
        sheet.frame = sheet.frame.with_columns(pl.col(sheet.bound["serial"].column).str.replace("^0+$", ""))
    _pass_over_empty(sheet)
    if {"cabinet", "slot"} & sheet.bound.keys() and "index" not in sheet.bound:
        _places(sheet)
    else:
        _on_node(sheet)
    if sheet.kind == "telemetry" and {"index", "pci_bus_id"} <= sheet.bound.keys() and "gpu" not in sheet.bound:
        _numbered_first(sheet)
    keys = {"index", "serial", "pci_bus_id"} | ({"slot"} if {"node", "slot"} <= sheet.bound.keys() else set())
    parts = [sheet.bound[key].column for key in sorted(keys & sheet.bound.keys())]
    if "gpu" not in sheet.bound:
        hosts = sheet.frame["=node"].drop_nulls().unique(maintain_order=True)
        if not parts and len(hosts) > 1:
            raise InputError(
                f"{sheet.file} has rows of node {hosts[0]} and of node {hosts[1]}, and nothing says which GPU they are "
                "of; say which column does with --map COLUMN=gpu, or COLUMN=index if it numbers the GPUs of a node"
            )
        if not parts and sheet.options.gpu is None:
            return ""
        if sheet.options.gpu is not None and sheet.frame.select(pl.struct("=node", *parts).n_unique()).item() <= 1:
            sheet.frame = sheet.frame.with_columns(_nothing("slot"))  # a number may be that in a process only
            _constant(sheet, sheet.options.gpu)
            return "--gpu"
    if sheet.options.gpu is not None and {"gpu", "slot"} & sheet.bound.keys():
        sheet.notes.append("the file names its GPUs, so --gpu is not used")
    source = _first_identity(sheet)
    if sheet.options.node is not None and (sheet.format or sheet.kind == "telemetry"):
        _check_one_host(sheet)
    return source


def of_one_cluster(sheet: Sheet) -> None:
    """Refuse rows of several clusters that have GPUs of the same name, and tell of other rows of several clusters."""
    for column in (name for name in sheet.frame.columns if name.lower() in CLUSTER):
        rows = sheet.frame.filter(~is_placeholder(column, minus_one=False))
        rows = rows.select("=gpu", "=uuid", pl.col(column).str.strip_chars().str.to_lowercase())
        if rows[column].n_unique() < 2:
            continue
        mixed = "column {!r} has rows of {} and of {}".format(column, *rows[column].unique().sort())
        advice = "split the file, and import each part with --cluster NAME"
        per_gpu = rows.filter(pl.col("=uuid").is_null()).group_by("=gpu").agg(pl.col(column).n_unique())
        shared = per_gpu.filter(pl.col(column) > 1)["=gpu"].sort()
        if len(shared):
            raise InputError(f"{sheet.file}: {mixed}, and both have a GPU {shared[0]}: {advice}")
        sheet.notes.append(
            f"{mixed}, and all are stored as of cluster {sheet.options.cluster}: if they differ, {advice}"
        )


def of_the_time(sheet: Sheet, stamps: str) -> None:
    """Give rows that were named by node and number to the card that was there at the time in the column `stamps`.

    Only slots matter in which the store knows several cards, one after another. A row without a time stays with the
    card that is there now.
    """
    cards = sheet.options.cards() if sheet.frame["=slot"].count() else pl.DataFrame()
    if cards.is_empty():
        return
    holders = sheet.options.fleet().select("name", pl.col("gpu").alias("now"))
    name = pl.format("{}/{}", "=node", "=slot").alias("name")
    rows = sheet.frame.filter(pl.col("=uuid").is_null() & pl.col(stamps).is_not_null())
    rows = rows.select(LINE, "=gpu", name, pl.col(stamps).alias("ts")).join(holders, on="name", how="left")
    by_number = pl.col("=gpu") == pl.coalesce("now", pl.col("name").str.replace("/", ":", literal=True))
    since = cards.sort("since")
    first = since.group_by("name").agg(pl.col("card").first().alias("first"))
    rows = rows.filter(by_number).join(first, on="name").sort("ts")
    rows = rows.join_asof(since, left_on="ts", right_on="since", by="name", check_sortedness=False)
    rows = rows.with_columns(pl.coalesce("card", "first").alias("card")).filter(pl.col("card") != pl.col("=gpu"))
    if rows.is_empty():
        return
    names = rows["name"].unique().sort().to_list()
    which = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    rows_are = "1 row is" if len(rows) == 1 else f"{len(rows):,} rows are"
    sheet.notes.append(f"{rows_are} of a card that is not there any more, or has another number now: {which}")
    sheet.frame = sheet.frame.join(rows.select(LINE, "card"), on=LINE, how="left", maintain_order="left")
    sheet.frame = sheet.frame.with_columns(pl.coalesce("card", "=gpu").alias("=gpu")).drop("card")


def of_jobs(sheet: Sheet, bound: Bound) -> None:
    """Add `=gpu` and `=uuid` to a sheet of allocations of GPUs. What begins like a UUID must be one, but for --map."""
    column = pl.col(bound.column)
    texts = sheet.frame.select(column).unique().with_columns(_uuid(column).alias("=uuid"))
    texts = texts.with_columns(pl.coalesce("=uuid", _place(column), _hardware_id(column), column).alias("=gpu"))
    sheet.frame = sheet.frame.join(texts, on=bound.column, how="left", maintain_order="left")
    torn = column.str.contains("(?i)^(?:GPU|MIG)-") & pl.col("=uuid").is_null() & _hardware_id(column).is_null()
    no_name = ~column.str.contains(_NAME)
    sheet.refuse((no_name if bound.mapped else no_name | torn, f"{bound.column} is not a UUID"))


def of_board(sheet: Sheet) -> list[pl.Expr]:
    """What a file says about the GPUs themselves, for the table `gpus`: `model`, and other columns of `BOARD`."""
    columns = {key: stated(sheet.bound[key].column) for key in BOARD if key in sheet.bound}
    columns = {"model": pl.lit(sheet.options.model, pl.String)} | columns
    return [text.alias(key) for key, text in columns.items()]


def address(text: str) -> str:
    """A PCI address as nvidia-smi writes it: 00000000:07:00.0; other texts as they are."""
    match = re.match(_ADDRESS, text)
    return f"{match[1] or '':>08}:{match[2]}.0".upper() if match else text


def refuse_strange(sheet: Sheet, *rules: tuple[str, pl.Expr, str]) -> None:
    """Refuse rows with a wrong field, and the file if every row has one.

    A field: column, which rows, what it should be.
    """
    wrong = sheet.counts(*(bad for _, bad, _ in rules))
    for count, (name, bad, meaning) in zip(wrong, rules, strict=True):
        if count and count == sheet.frame.height:
            first = sheet.frame.filter(bad).row(0, named=True)
            raise InputError(
                f"{sheet.file}: column {name!r} does not contain what its name says ({meaning}): line "
                f"{sheet.line(first[LINE])} has {first[name][:40]!r}; say what the columns are with --map"
            )
    if any(wrong):
        sheet.refuse(*((bad, f"{name} cannot be the {meaning}") for name, bad, meaning in rules))


def _nothing(*keys: str) -> list[pl.Expr]:
    return [pl.lit(None, pl.Int64 if key == "slot" else pl.String).alias(f"={key}") for key in keys]


def _stem(sheet: Sheet) -> str:
    return sheet.options.gpu or sheet.file.split(".")[0] or "stream"


def _pass_over_empty(sheet: Sheet) -> None:
    """Leave out identities that no row states, such as a `uuid` which is [N/A] on all rows."""
    for key in [key for key in ("gpu", "index", "serial", "pci_bus_id", "slot") if key in sheet.bound]:
        column = sheet.bound[key].column
        if sheet.frame.height and sheet.frame.select(is_placeholder(column, minus_one=True).all()).item():
            del sheet.bound[key]
            if key in ("gpu", "index") and not sheet.format:
                sheet.notes.append(f"{column} is empty on all rows, so it names no GPU")


def _on_node(sheet: Sheet) -> None:
    """`=node` from the file, else from --node, and `=slot` from the number of the GPU on it."""
    node = pl.lit(sheet.options.node, pl.String)
    if "node" in sheet.bound:
        node = pl.coalesce(stated(sheet.bound["node"].column), node)
    sheet.frame = sheet.frame.with_columns(node.alias("=node"), *_nothing("place", "cabinet", "slot"))
    if sheet.options.node is not None and (sheet.frame["=node"] != sheet.options.node).any():
        sheet.notes.append(
            f"column {sheet.bound['node'].column!r} names the node of rows, so --node is not used for them"
        )
    if "index" in sheet.bound:
        index = sheet.bound["index"].column
        strange = ~pl.col(index).str.contains(_NUMBER) & ~is_placeholder(index, minus_one=False)
        refuse_strange(sheet, (index, strange, "index of a GPU"))
        number = pl.col(index).str.extract(_NUMBER, 1)
        sheet.frame = sheet.frame.with_columns(number.cast(pl.Int64, strict=False).alias("=slot"))


def _first_identity(sheet: Sheet) -> str:
    """`=gpu` and `=uuid` of each row, by the first identity that the file states; which that is."""
    sheet.frame = sheet.frame.with_columns(*_nothing("gpu", "uuid"))
    fleet, host = sheet.options.fleet(), pl.col("=node")
    if "gpu" in sheet.bound:
        _named(sheet, sheet.bound["gpu"])
        _not_numbers(sheet, sheet.bound["gpu"])
    else:  # where the file has no other name of its host, the file's name stands for it
        host = pl.coalesce(host, pl.lit(_stem(sheet)))
    keys: dict[str, pl.Expr] = {}
    if "index" in sheet.bound:
        keys["index"] = _numbered(host, pl.col("=slot").cast(pl.String), fleet)
    elif {"node", "slot"} <= sheet.bound.keys():
        keys["slot"] = pl.col("=place")
    for key in ("serial", "pci_bus_id"):
        if key in sheet.bound:
            keys[key] = _of_board_part(sheet.bound[key].column, key, host, fleet)
    stored = fleet["gpu"].unique().implode()
    by_serial = {"index", "serial"} <= keys.keys() and {"gpu", "instance"}.isdisjoint(sheet.bound)
    if by_serial and not _is_of_boards(sheet, sheet.bound["serial"].column):
        unknown = fleet.filter(pl.col("serial").is_null() & ~pl.col("gpu").str.starts_with("GPU-"))["gpu"]
        by_number = pl.when(~keys["serial"].is_in(stored) & keys["index"].is_in(unknown.implode())).then(keys["index"])
        keys = {"serial": pl.coalesce(by_number, keys["serial"])} | keys
    is_of_runs = sheet.kind == "runs"
    if {"index", "pci_bus_id"} <= keys.keys() and (is_of_runs or {"gpu", "serial"}.isdisjoint(sheet.bound)):
        # CUDA may number GPUs otherwise than the driver, and the driver itself anew where one is lost
        at_address = keys["pci_bus_id"]
        gpu = pl.coalesce("=gpu", pl.when(at_address.is_in(stored)).then(at_address)).alias("=gpu")
        sheet.frame = sheet.frame.with_columns(gpu, pl.when(gpu.is_null()).then("=slot").alias("=slot"))
        if is_of_runs:
            del keys["pci_bus_id"]
        else:  # a number that another address has is no name
            of_other = pl.col("=gpu").is_null() & at_address.is_not_null()
            of_other &= keys["index"].is_in(sheet.frame["=gpu"].drop_nulls().unique().implode())
            sheet.frame = sheet.frame.with_columns(pl.when(~of_other.fill_null(False)).then("=slot").alias("=slot"))
    first = "gpu" if "gpu" in sheet.bound else next(iter(keys))
    answers = pl.col("=lost").is_null() if "=lost" in sheet.frame.columns else pl.lit(True)
    for key, gpu in keys.items():
        if key != first:
            _link(sheet, sheet.bound[key].column, of_node=key != "serial")
            gpu = pl.when(answers).then(gpu)
        sheet.frame = sheet.frame.with_columns(pl.coalesce("=gpu", gpu).alias("=gpu"))
    if sheet.frame["=gpu"].null_count():  # a lost GPU that states a weaker identity only is no further GPU
        known = pl.concat([fleet["gpu"], sheet.frame["=gpu"]]).drop_nulls().unique().implode()
        gpus = [pl.when(gpu.is_in(known)).then(gpu) for gpu in keys.values()]
        sheet.frame = sheet.frame.with_columns(pl.coalesce("=gpu", *gpus).alias("=gpu"))
    if "instance" not in sheet.bound and sheet.frame["=uuid"].str.starts_with("MIG-").any():
        _instances_by_uuid(sheet, [pl.when(gpu.is_in(stored)).then(gpu) for gpu in keys.values()])
    return _where(sheet, sheet.bound[first], first)


def _instances_by_uuid(sheet: Sheet, stored: list[pl.Expr]) -> None:
    """A MIG instance that its UUID names is not the GPU whose number, address and serial its row has: that is its
    `=parent`, as other rows name it, or the store."""
    is_instance, columns = pl.col("=uuid").str.starts_with("MIG-"), []
    parents = [pl.col("=uuid").str.extract("^MIG-(GPU-[^/]+)/", 1)]
    for key in [key for key in ("index", "serial", "pci_bus_id") if key in sheet.bound]:
        columns.append(sheet.bound[key].column)
        place = pl.concat_str("=node", stated(columns[-1]), separator=":", ignore_nulls=True)
        whole = sheet.frame.filter(~is_instance).select(place.alias("place"), "=gpu").drop_nulls().unique("place")
        parents.append(place.replace_strict(whole["place"], whole["=gpu"], default=None, return_dtype=pl.String))
    sheet.frame = sheet.frame.with_columns(
        pl.when(is_instance).then(pl.coalesce(*parents, *stored)).alias("=parent"),
        pl.when(is_instance.fill_null(False).not_()).then("=slot").alias("=slot"),
        *(pl.when(is_instance).then(pl.lit("")).otherwise(column).alias(column) for column in columns),
    )


def _numbered_first(sheet: Sheet) -> None:
    """Let a GPU without other names keep the number that its PCI address had first: where one is lost, the driver
    gives those behind it other numbers. Where two had the same one first, no number counts."""
    address_of = sheet.bound["pci_bus_id"].column
    rows = sheet.frame.filter(stated(address_of).is_not_null() & pl.col("=slot").is_not_null())
    firsts = rows.group_by("=node", address_of).agg(pl.col("=slot").n_unique().alias("n"), pl.col("=slot").first())
    if (firsts["n"] < 2).all():
        return
    if firsts.select(pl.struct("=node", "=slot").is_duplicated().any()).item():
        del sheet.bound["index"]
        sheet.frame = sheet.frame.with_columns(_nothing("slot"))
        return
    sheet.notes.append("the driver's numbers of GPUs change in it: each keeps the first that its PCI address had")
    sheet.frame = sheet.frame.join(
        firsts.drop("n"), on=["=node", address_of], how="left", suffix=" first", nulls_equal=True, maintain_order="left"
    )
    sheet.frame = sheet.frame.with_columns(pl.coalesce("=slot first", "=slot").alias("=slot")).drop("=slot first")


def _check_one_host(sheet: Sheet) -> None:
    """Refuse rows of several hosts, to which --node would give one name: GPUs that are never in one reading with each
    other have the same PCI address or number. Raises InputError."""
    at_address = "pci_bus_id" in sheet.bound
    place = (stated(sheet.bound["pci_bus_id"].column) if at_address else pl.col("=slot")).alias("place")
    of_node = (pl.col("=node") == sheet.options.node) & pl.col("=gpu").is_not_null() & place.is_not_null()
    of_node &= ~pl.col("=gpu").str.starts_with("MIG-")
    record = [RECORD] if sheet.kind == "runs" else []
    rows = sheet.frame.lazy().filter(of_node).select(LINE, "=gpu", place, *record)  # lazy: copies of texts are large
    pairs = rows.group_by("place", "=gpu").agg(pl.col(LINE).min()).sort(LINE).collect()
    shared = pairs.group_by("place", maintain_order=True).agg("=gpu", LINE).filter(pl.col("=gpu").list.len() > 1)
    if shared.is_empty():
        return
    order = pl.col("place").rank("dense").cast(pl.Int64)  # a reading goes through the GPUs in the order of the driver
    reading = pl.col(RECORD) if record else (order <= order.shift()).fill_null(False).cum_sum()
    together = (
        rows.collect()
        .group_by(reading.alias("reading"), maintain_order=True)
        .agg(pl.col("=gpu").unique(maintain_order=True), pl.col("place").n_unique())
    )
    hosts: dict[str, str] = {}  # GPU -> a GPU of the same host
    for gpus in together.filter(pl.col("=gpu").list.len() == pl.col("place"))["=gpu"].unique(maintain_order=True):
        known = {hosts.get(gpu, gpu) for gpu in gpus}
        hosts |= dict.fromkeys(gpus, min(known))
        hosts = {gpu: min(known) if host in known else host for gpu, host in hosts.items()}
    for shared_place, gpus, keys in shared.iter_rows():
        if len({hosts.get(gpu, gpu) for gpu in gpus}) > 1:
            raise InputError(
                f"{sheet.file} has rows of several hosts, and --node {sheet.options.node} can name one: the GPU at "
                f"{shared_place} is {gpus[0]} in line {sheet.line(keys[0])} and {gpus[1]} in line "
                f"{sheet.line(keys[1])}; split the file there and give each part its --node, or leave out --node"
            )


def _link(sheet: Sheet, column: str, *, of_node: bool) -> None:
    """Give a row without its GPU the one that all other rows with the same number, serial or address have."""
    if not sheet.frame["=gpu"].null_count():
        return
    keys = ["=node", column] if of_node else [column]
    named = sheet.frame.filter(pl.col("=gpu").is_not_null() & stated(column).is_not_null())
    pairs = named.select(*keys, "=gpu", "=uuid").unique()
    links = pairs.filter(~pairs.select(keys).is_duplicated())
    frame = sheet.frame.join(links, on=keys, how="left", suffix=" linked", nulls_equal=True, maintain_order="left")
    filled = [pl.coalesce(name, f"{name} linked").alias(name) for name in ("=gpu", "=uuid")]
    sheet.frame = frame.with_columns(filled).drop("=gpu linked", "=uuid linked")


def _numbered(host: pl.Expr, number: pl.Expr, fleet: pl.DataFrame) -> pl.Expr:
    """The GPU with a number on a host: as the store knows it, else named host:number."""
    keys = dict(fleet.select("name", "gpu").iter_rows())
    name = host + "/" + number
    return pl.when(name.is_in(list(keys))).then(name.replace(keys)).otherwise(host + ":" + number)


def _of_board_part(column: str, key: str, host: pl.Expr, fleet: pl.DataFrame) -> pl.Expr:
    """The GPU with a serial number, or at a PCI address of a host: as the store knows it, else named after it.

    A serial number is one GPU wherever it is; an address is one of its host only.
    """
    stored, text = fleet.drop_nulls(key), stated(column)
    if key == "serial":
        return text.replace(dict(stored.select("serial", "gpu").iter_rows()))
    known = {f"{node}:{address(part)}": gpu for node, part, gpu in stored.select("node", key, "gpu").iter_rows()}
    return (host + ":" + text).replace(known)


def _is_of_boards(sheet: Sheet, column: str) -> bool:
    """Whether several GPUs in turn have one serial number, as those of one board do: then it is no GPU's."""
    turns = pl.col("=slot") != pl.col("=slot").shift()
    shares = sheet.frame.filter(stated(column).is_not_null()).group_by(column).agg(turns.fill_null(False).mean())
    return bool((shares["=slot"] > 0.5).any())  # the number of a card changes once, if at all


def _where(sheet: Sheet, bound: Bound, key: str) -> str:
    """Where a file names its GPUs. A column of a format has the name of its meaning, which the file does not have."""
    source = f"the {_SHOWN[key]} that {sheet.format} has" if sheet.format and key in _SHOWN else f"{bound.column!r}"
    source = source if sheet.format else f"column {source}"
    if key not in ("index", "pci_bus_id"):
        return source
    if sheet.frame["=node"].count():
        return f"{source} (as node:{key})"
    advice = "" if sheet.options.gpu else "; the file names no host: --node NAME gives it"
    return f"{source} (as {_stem(sheet)}:{key}){advice}"


def _of_instances(frame: pl.DataFrame, sheet: Sheet) -> pl.DataFrame:
    """MIG instances: named after their GPU where its UUID is known, else after their host; `=parent` is the GPU."""
    bound = sheet.bound
    instances = replace(sheet, frame=frame, bound={key: bound[key] for key in ("node",) if key in bound}, notes=[])
    _on_node(instances)
    frame, host = instances.frame, pl.coalesce("=node", pl.lit(_stem(sheet)))
    parent, uuid = pl.lit(None, pl.String), pl.lit(None, pl.String)
    base = host
    if "gpu" in bound:
        driver = _uuid(pl.col(bound["gpu"].column))
        parent = pl.when(driver.str.starts_with("GPU-")).then(driver)
        uuid = pl.when(driver.str.starts_with("MIG-")).then(driver)
        base = pl.coalesce(parent, host)
    elif "index" in sheet.bound:
        parent = _numbered(host, pl.col(sheet.bound["index"].column).str.extract(_NUMBER, 1), sheet.options.fleet())
    own_key = pl.coalesce(uuid, base + ":" + pl.col(sheet.bound["instance"].column))
    return frame.with_columns(parent.alias("=parent"), uuid.alias("=uuid"), own_key.alias("=gpu"))


def _uuid(text: pl.Expr) -> pl.Expr:
    """A UUID as the driver writes it, GPU-... in lower case; some tools drop the prefix. Null where it is none."""
    lower = text.str.to_lowercase()
    prefix = pl.coalesce(lower.str.extract("^((?:mig-)?gpu-|mig-)", 1).str.to_uppercase(), pl.lit("GPU-"))
    return pl.when(text.str.contains(_UUID)).then(prefix + lower.str.replace("^(?:mig-)?(?:gpu-)?", ""))


def _hardware_id(text: pl.Expr) -> pl.Expr:
    """An identity that is hexadecimal digits only, in lower case. Null where it is none."""
    lower = text.str.to_lowercase()
    lower = pl.when(text.str.starts_with("GPU-")).then("GPU-" + lower.str.slice(4)).otherwise(lower)
    return pl.when(text.str.contains(_HARDWARE_ID)).then(lower)


def _place(text: pl.Expr) -> pl.Expr:
    """A cabinet, node and device without leading zeros. Null where it is none."""
    is_place = text.str.contains(_PLACE) & ~text.str.contains("(?i)^(?:GPU|MIG)-")
    return pl.when(is_place).then(_without_zeros(text))


def _without_zeros(name: pl.Expr) -> pl.Expr:
    """`c197-001-0` and `c197-1-0` are one place."""
    return name.str.replace_all("-0+([0-9])", "-${1}")


def _constant(sheet: Sheet, name: str) -> None:
    """All rows are of one GPU: of the one that the store knows by this name, else of a new one."""
    names = dict(sheet.options.fleet().select("gpu", "name").iter_rows())
    key = name
    if sheet.options.gpu is not None and name not in names:
        # A name that somebody gave has no parts: `v1` is not `v10`.
        in_parts = {gpu: (known,) for gpu, known in names.items() if known != gpu or gpu[:4] == "GPU-"}
        try:
            key = known_gpu(name, in_parts) or name
        except InputError as error:
            raise InputError(f"{sheet.file}: --gpu {error}") from error
        if key != name:
            also = f" ({key})" if names[key] != key else ""
            sheet.notes.append(f"--gpu {name} is the GPU {names[key]} of the store{also}")
    uuid = _uuid(pl.lit(key))
    sheet.frame = sheet.frame.with_columns(uuid.alias("=uuid"), pl.coalesce(uuid, pl.lit(key)).alias("=gpu"))


def _named(sheet: Sheet, bound: Bound) -> None:
    """`=gpu` and `=uuid` from a column of identities; in a column that is mapped, a GPU may have any name.

    NULL where the row states none. A place also says the cabinet, the node and the slot.
    """
    name, text = bound.column, pl.col(bound.column)
    has_name = ~is_placeholder(name, minus_one=not bound.mapped)
    texts = sheet.frame.select(text).unique().filter(has_name)  # once each: a stream names few GPUs on many rows
    gpu, place = _uuid(text), pl.lit(None, pl.String)
    if bound.mapped:
        fleet = sheet.options.fleet()
        names_by_key = fleet.filter(~fleet["name"].is_duplicated() & fleet["name"].str.contains("/", literal=True))
        gpu = pl.coalesce(gpu, text.replace(dict(names_by_key.select("name", "gpu").iter_rows())))
    else:
        place = _place(text)
        gpu = pl.coalesce(gpu, place, _hardware_id(text))
    texts = texts.with_columns(gpu.alias("=gpu"), _uuid(text).alias("=uuid"), place.alias("=stated"))
    accepts = f"; {typed('--map', name, 'gpu')} accepts any name"
    strange = texts.filter(pl.col("=gpu").is_null())[name]
    if len(strange) and len(strange) == texts.height:
        line, first = sheet.frame.filter(text.is_in(strange.implode())).select(LINE, name).row(0)
        raise InputError(
            f"{sheet.file}: column {name!r} does not hold the identity of a GPU: line {sheet.line(line)} "
            f"has {first[:40]!r}{accepts}"
        )
    if len(strange):
        sheet.refuse((text.is_in(strange.implode()), f"{name} is not a UUID{accepts}"))
    sheet.frame = sheet.frame.with_columns(
        text.replace_strict(texts[name], texts[key], default=None, return_dtype=pl.String).alias(key)
        for key in ("=gpu", "=uuid", "=stated")
    )
    if texts["=stated"].count():
        differs = (pl.col("=place") != pl.col("=stated")).fill_null(False)
        sheet.refuse((differs, f"{name} cannot be the place that the row's cabinet, node and device give"))
        parts = pl.col("=stated").str.extract_groups(r"^((.*)-[^-]+)-([0-9]+)$").struct
        said = {"place": pl.col("=stated"), "node": parts[0], "cabinet": parts[1], "slot": parts[2].cast(pl.Int64)}
        sheet.frame = sheet.frame.with_columns(pl.coalesce(f"={key}", part) for key, part in said.items())
    sheet.frame = sheet.frame.drop("=stated")


def _not_numbers(sheet: Sheet, bound: Bound) -> None:
    """Refuse a file that numbers the GPUs of a node in a column of GPUs: GPU 0 of one node is not GPU 0 of another.

    Where the node is not known, a note tells of it.
    """
    column, as_index = bound.column, typed("--map", bound.column, "index")
    pairs = sheet.frame.select(pl.col(column).alias("number"), pl.col("=node").alias("node")).unique()
    numbers = pairs.filter(pl.col("number").str.contains(_NUMBER)).sort("number", "node")
    nodes = numbers.drop_nulls().group_by("number", maintain_order=True).agg("node")
    for number, (first, second, *_) in nodes.filter(pl.col("node").list.len() > 1).iter_rows():
        raise InputError(
            f"{sheet.file}: column {column!r} has {number} on {first} and on {second}, so it numbers the GPUs of a "
            f"node: say {as_index}"
        )
    if not pairs.height or numbers.height < pairs.height:
        return
    if pairs["node"].n_unique() == 1 and pairs["node"].count():
        raise InputError(
            f"{sheet.file}: column {column!r} has only numbers, such as {numbers['number'][0]}, and all are of node "
            f"{numbers['node'][0]}: say {as_index}, as other nodes have GPUs of the same numbers"
        )
    sheet.notes.append(
        f"the GPUs have no name but a number: one of the same number in another file is the same GPU; if {column!r} "
        f"numbers the GPUs of a node, import it into a new store with {as_index} --node NAME"
    )


def _places(sheet: Sheet) -> None:
    """`=cabinet`, `=node` (unique within the cluster), `=slot`, `=place` from the columns that say them."""
    columns = {key: sheet.bound[key].column for key in ("cabinet", "node", "slot") if key in sheet.bound}
    unknown = {key: is_placeholder(column, minus_one=True) for key, column in columns.items()}
    for column, count in zip(columns.values(), sheet.counts(*unknown.values()), strict=True):
        if count:
            sheet.placeholders[column] = count
    patterns = {"cabinet": _CABINET, "node": _NODE, "slot": r"^[0-9]{1,2}(?:\.0+)?$"}
    if "cabinet" in sheet.bound and sheet.bound["cabinet"].mapped:
        patterns["cabinet"] = _NODE
    rules = [
        (column, ~unknown[key] & ~pl.col(column).str.contains(patterns[key]), sheet.bound[key].meaning.description)
        for key, column in columns.items()
    ]
    refuse_strange(sheet, *rules)
    # If a row of the column is empty, some tools write the whole number 4 as 4.0.
    plain = {key: pl.col(column).str.replace(r"^([0-9]+)\.0+$", "${1}") for key, column in columns.items()}
    texts = [pl.when(~unknown[key]).then(text).alias(f"={key}") for key, text in plain.items()]
    sheet.frame = sheet.frame.with_columns(*texts, *_nothing(*(patterns.keys() - columns.keys())))
    cabinet, node, slot = pl.col("=cabinet"), pl.col("=node"), pl.col("=slot").cast(pl.Int64)
    # "004" and 4 are one node; where there are cabinets, a number is unique only together with its own.
    number = node.str.extract("^0*([0-9]+)$", 1)
    numbered = cabinet + "-" + number if "cabinet" in sheet.bound else number
    # The name of a host stays as it is: the batch system and telemetry know `gpu-007` by no other name.
    host = pl.when(number.is_null()).then(node).otherwise(numbered)
    place = _without_zeros(host) + "-" + slot.cast(pl.String)
    sheet.frame = sheet.frame.with_columns(host.alias("=node"), slot, place.alias("=place"))


def _check_places(sheet: Sheet) -> None:
    """Do not believe a device column that puts two GPUs in one place.

    If only a place or two is concerned, a board was replaced or a row is damaged: only those places are left out. If it
    is common, the column means something else (in some files it is 0 on every row).
    """
    pairs = sheet.frame.select("=place", "=gpu").drop_nulls("=place").unique()
    crowded = pairs.filter(pairs["=place"].is_duplicated())["=place"].unique().sort()
    if not len(crowded):
        return
    common = len(crowded) * _CROWDED > pairs["=place"].n_unique()
    sheet.notes.append(
        f"several GPUs have the same place ({len(crowded)}, for example {crowded[0]}): "
        + ("the device column was not used, so all places were" if common else "these places are")
        + " left out"
    )
    bad = pl.lit(common) | pl.col("=place").is_in(crowded.implode()).fill_null(False)
    slot = pl.when(~bad | pl.col("=place").is_null()).then("=slot").alias("=slot")
    sheet.frame = sheet.frame.with_columns(slot, pl.when(~bad).then("=place").alias("=place"))
