"""Places that lose more GPUs than others, whichever card is there: nodes, slots, cages and cabinets.

A card that fails again and again is the card's fault. So a card counts once for its node, and what counts against a
node are different cards. Losses at one moment are one loss. The error rate is that of Benjamini and Hochberg (J. R.
Statist. Soc. B 57, 1995), among the places of one kind. docs/how-we-know/verdicts.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..runs.probing import IS_FACT, OF_MEMORY, gpus_of
from ..runs.sittings import Floats, Ints
from ..statistics.ordering import binomial, discoveries, poisson, poisson_at_least, share_interval, simes
from .verdict import (
    LOSSES,
    Action,
    ComparedWith,
    Findings,
    Gap,
    Kind,
    Level,
    Measured,
    NotJudged,
    Quantity,
    State,
    Verdict,
)

if TYPE_CHECKING:
    from ...store import Store

ERROR_RATE = 0.05
"""Of the places of one kind that are named, the share that is like the others."""
RELEVANT = 1.25
"""A place is named if it loses at least this many times as many cards as the others."""
_MOST_P = {"node": 1e-3}
"""A chance above it names no place of this kind: nodes are many, and some have more losses than others."""
_SAME_FAULT = timedelta(hours=24)
"""Events of a card without a longer pause are one incident."""
_MOMENT = timedelta(minutes=10)
"""Incidents without a longer pause are one moment."""
_UNLIKELY = 1e-3
"""A chance below it tells that several nodes did not lose cards at one moment each for itself."""
_CAGE = r"^[cx][0-9]+(?:-[0-9]+)?c([0-9]+)s[0-9]+(?:b[0-9]+)?n[0-9]+$"
"""Names of nodes that tell the cage or chassis of a cabinet: c3-0c2s1n3, x1000c2s1b0n0."""
_DAY_US = 86_400e6

_DISPERSION = {0.2: 0.05, 0.5: 0.15, 1.0: 0.25, 2.0: 0.2, 5.0: 0.15, 20.0: 0.1}
"""Shapes of the gamma distributions that rates of nodes may have, and how likely each is before any losses. Published
counts of faults by server (231 of 400 with any, 33 with five or more) have a shape near 1."""
_LOG_SPREAD = {1.0: 0.07, 1.5: 0.03}
"""The same of lognormal distributions: standard deviations of the logarithm."""
_RATES = np.geomspace(1e-3, 1e2, 61)
"""A rate of a node over the mean."""
_MEANS = np.geomspace(0.02, 4.0, 25)
"""The mean rate over losses per day of exposure."""


@dataclass(frozen=True, slots=True)
class _Tested:
    """The places of one kind in one look."""

    names: list[str]
    losses: Ints
    days: Floats
    p: Floats


def places(
    events: pl.DataFrame, cards: pl.DataFrame, *, until: datetime, since: datetime | None = None, cluster: str = ""
) -> Findings:  # fmt: skip
    """The places that lose more cards than others; their GPUs are named by their keys.

    `events`: ts, gpu, node, pci_bus_id, code, of those that tell of a fault of the hardware. `cards`: gpu, node, slot,
    cabinet, pci_bus_id, first_seen, as in `gpus`. `until`: when the observation ended; what is a day later is wrong.
    """
    sites = _sites(cards)
    events = _at_sites(events.with_columns(pl.col("gpu", "node", "pci_bus_id").cast(pl.String)), sites)
    homeless = events["node"].null_count()
    dated = events.filter(pl.col("node").is_not_null() & (pl.col("ts") <= until + timedelta(days=1)))
    unknown = dated.join(sites, on=["node", "gpu"], how="anti").unique(["node", "gpu"])
    sites = pl.concat([sites, unknown.select("gpu", "node", pl.col("gpu").alias("site"))], how="diagonal")
    of_memory = pl.col("code").is_in([*OF_MEMORY]).fill_null(value=False)
    versions = [_moments(dated), _moments(dated.filter(~of_memory))]
    moments, exposed = [of_version for of_version, _ in versions], _exposed(sites, dated, since, until)
    rows, tests = list[Verdict](), 0
    for kind, test in _KINDS.items():
        tested = [test(of_version, exposed, kind) for of_version in moments]
        tests += len(tested[0].names)
        rows += [replace(verdict, cluster=cluster) for verdict in _named(kind, tested, moments, exposed)]
    left_out = {
        Gap.EVENTS_NOWHERE: homeless,
        Gap.EVENTS_UNDATED: events.height - homeless - dated.height,
        Gap.EVENTS_TOGETHER: versions[0][1],
    }
    gaps = tuple(NotJudged(cluster, cluster, why, n=count) for why, count in left_out.items() if count)
    return Findings(tuple(rows), gaps, tests)


# -- what happened where ----------------------------------------------------------------------------------


def _sites(cards: pl.DataFrame) -> pl.DataFrame:
    """A row for each card in each place: gpu, node, slot, site, cabinet, cage, address, first_seen.

    `slot` is the number of the slot, else the PCI address; `site` is the same, or the card where neither is known.
    """
    address = pl.col("address")
    return (
        cards.drop_nulls("node")
        .with_columns(pl.col("gpu", "node", "cabinet").cast(pl.String), _address().alias("address"))
        .with_columns(pl.coalesce(pl.col("slot").cast(pl.String), address).alias("slot"))
        .group_by("gpu", "node", "slot", maintain_order=True)
        .agg(
            pl.col("cabinet", "address").drop_nulls().last(),
            pl.when(pl.col("first_seen").is_not_null().all()).then(pl.col("first_seen").min()).alias("first_seen"),
        )
        .with_columns(pl.coalesce("slot", "gpu").alias("site"), pl.col("node").str.extract(_CAGE).alias("cage"))
    )


def _address() -> pl.Expr:
    """The PCI address, written in one way."""
    from ...store.importing.identity import address  # the import of files takes long to load

    return (
        pl.col("pci_bus_id")
        .cast(pl.String)
        .map_batches(
            lambda names: names.replace({text: address(text) for text in names.drop_nulls().unique()}), pl.String
        )
    )


def _at_sites(events: pl.DataFrame, sites: pl.DataFrame) -> pl.DataFrame:
    """The events with node, slot and card (`gpu`) as far as they are known; an unknown card has the place's name."""
    events = events.with_columns(_address().alias("address")).with_row_index("row")
    events = _filled(events, sites, ["gpu"], ["node"])
    events = _filled(events, sites, ["node", "address"], ["gpu"])
    events = events.with_columns(
        pl.coalesce("gpu", pl.concat_str(pl.col("node"), pl.lit(" "), pl.col("address").fill_null("?"))).alias("gpu"),
        pl.lit(None, pl.String).alias("slot"),
    )
    return _filled(_filled(events, sites, ["gpu", "node"], ["slot"]), sites, ["node", "address"], ["slot"])


def _filled(events: pl.DataFrame, sites: pl.DataFrame, keys: list[str], missing: list[str]) -> pl.DataFrame:
    """The events with columns that they miss, of the card that was there: the last one seen before, else the first."""
    later = (pl.col("first_seen") > pl.col("ts")).fill_null(value=False)
    age = pl.col("first_seen").cast(pl.Int64).fill_null(-(2**62))
    known_values = (
        events.filter(pl.col(missing[0]).is_null())
        .select("row", "ts", *keys)
        .drop_nulls(keys)
        .join(sites.select(*keys, *missing, "first_seen").drop_nulls(keys), on=keys)
        .sort("row", ~later, pl.when(later).then(-age).otherwise(age))
        .group_by("row", maintain_order=True)
        .agg(pl.col(missing).last())
    )
    return (
        events.join(known_values, on="row", how="left", suffix="_found", maintain_order="left")
        .with_columns(pl.coalesce(name, f"{name}_found").alias(name) for name in missing)
        .drop(f"{name}_found" for name in missing)
    )


def _moments(events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """A row for each moment at which a node lost cards, and how many losses are left out, which several nodes had.

    ts, node, gpu, slot (null where several cards were lost: the order in which a driver lists them says nothing), and
    `fresh`: whether a card is among them that had not failed before.
    """
    pause = pl.col("ts").diff()
    incidents = (
        events.sort("ts", "gpu")
        .filter((pause.over("gpu", "node").is_null()) | (pause.over("gpu", "node") > _SAME_FAULT))
        .with_columns((pause > _MOMENT).fill_null(value=False).cum_sum().alias("together"))
        .with_columns(pl.col("node").n_unique().over("together").alias("nodes"))
    )
    if incidents.is_empty():
        return incidents.select("ts", "node", "gpu", "slot", pl.lit(True).alias("fresh")), 0
    at = incidents["ts"].cast(pl.Int64)
    coarse = next((step for step in (_DAY_US, _DAY_US / 24) if (at % int(step) == 0).all()), 0)
    window = (pl.col("ts").max() - pl.col("ts").min()).dt.total_microseconds().over("together")
    window = window + max(coarse, _MOMENT.total_seconds() * 1e6)
    per_us = incidents.height / max(int(at[-1] - at[0]), _DAY_US)
    expected = incidents.select(window.alias("window"))["window"].to_numpy() * per_us
    storm = (incidents["nodes"] > 2).to_numpy() & (
        poisson_at_least(incidents["nodes"].to_numpy() - 1, expected) < _UNLIKELY
    )
    moments = (
        incidents.filter(pl.Series(~storm))
        .with_columns(pl.col("gpu").is_first_distinct().alias("fresh"))
        .group_by("together", "node", maintain_order=True)
        .agg(
            pl.col("ts", "gpu").first(),
            pl.when(pl.col("gpu").n_unique() == 1).then(pl.col("slot").first()).alias("slot"),
            pl.col("fresh").any(),
        )
    )
    return moments.drop("together"), int(storm.sum())


def _exposed(sites: pl.DataFrame, events: pl.DataFrame, since: datetime | None, until: datetime) -> pl.DataFrame:
    """A row for each site of a node: node, site, slot, cabinet, cage, gpu (who was seen there last), days.

    A site counts from when a card was first seen there; all count alike where that is not known: where a site is
    without a date, or has events that are older.
    """
    first = pl.col("first_seen")
    sites_of_nodes = (
        sites.sort("first_seen", nulls_last=False)
        .group_by("node", "site", maintain_order=True)
        .agg(
            pl.col("slot", "cabinet", "cage").drop_nulls().last(),
            pl.col("gpu").last(),
            pl.when(first.is_not_null().all()).then(first.min()).alias("first_seen"),
        )
    )
    old = events.join(sites_of_nodes, on=["node", "slot"], how="inner")
    old = old.filter(pl.col("ts") < first - timedelta(days=1))
    dates = [at for at in (sites_of_nodes["first_seen"].min(), events["ts"].min()) if isinstance(at, datetime)]
    began = min(dates, default=until)
    dated = not old.height and not sites_of_nodes["first_seen"].null_count()
    begin_seen = first if dated else pl.lit(began, pl.Datetime("us"))
    begin = pl.max_horizontal(begin_seen, pl.lit(since or began, pl.Datetime("us")))
    days = (pl.lit(until) - begin).dt.total_microseconds() / _DAY_US
    return sites_of_nodes.with_columns(days.clip(1.0).alias("days"))


# -- the tests --------------------------------------------------------------------------------------------


def _slots(moments: pl.DataFrame, exposed: pl.DataFrame, _: str) -> _Tested:
    """Each slot number over all nodes: how many cards are lost in it, of all that its nodes lose.

    A permutation test: if slots are alike, what a node lost in its places may have been in any of its slots, by their
    share of its exposure. All losses in a place stay together, so one place that loses many cards makes no slot.
    """
    table = exposed.drop_nulls("slot").pivot("slot", index="node", values="days", aggregate_function="sum")
    names = [name for name in table.columns if name != "node"]
    lost = moments.drop_nulls("slot").join(table.select("node"), on="node", how="semi")
    if len(names) < 2 or lost.is_empty():
        return _Tested([], np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    wide = lost.pivot("slot", index="node", values="gpu", aggregate_function="len")
    counted = table.select("node").join(wide, on="node", maintain_order="left")
    missing = [pl.lit(0).alias(name) for name in names if name not in wide.columns]
    counts = counted.with_columns(missing).select(names).fill_null(0).to_numpy().astype(np.int64)
    days = counted.select("node").join(table, on="node", maintain_order="left").select(names).fill_null(0.0).to_numpy()
    shares = days / days.sum(axis=1, keepdims=True)
    distinct, which = np.unique(shares, axis=1, return_inverse=True)
    laws = [_permuted(counts, share) for share in distinct.T]
    losses = counts.sum(axis=0)
    p = [_middle_p(laws[law], int(least)) for law, least in zip(which.ravel(), losses, strict=True)]
    return _Tested(names, losses, counts.sum(axis=1) @ shares, np.array(p))


def _permuted(counts: Ints, shares: Floats) -> Floats:
    """The law of the losses in one slot, if what each node lost in a place may have been in any: a chance by number.

    `counts`: (nodes, slots) losses; `shares`: (nodes,) of the slot in the exposure of each node.
    """
    law = np.ones(1)
    for row, share in zip(counts, shares, strict=True):
        blocks = row[row > 0]
        chance = min(float(share), 1 / len(blocks))
        here = np.zeros(int(blocks.max()) + 1)
        np.add.at(here, blocks, chance)
        here[0] = 1 - chance * len(blocks)
        law = np.convolve(law, here)
    return law


def _middle_p(law: Floats, least: int) -> float:
    """The chance of more than so many, and half of that of just so many (Lancaster, J. Am. Stat. Assoc. 56, 1961)."""
    return float(min(law[least + 1 :].sum() + law[least] / 2, 1.0)) if least else 1.0


def _groups(moments: pl.DataFrame, exposed: pl.DataFrame, kind: str) -> _Tested:
    """Each cage or cabinet: how many losses its nodes have, where all that a node lost falls to one of them."""
    by_node = exposed.drop_nulls(kind).group_by("node").agg(pl.col(kind).last(), pl.col("days").sum())
    groups = by_node.group_by(kind, maintain_order=True).agg(pl.col("days").sum(), pl.len()).sort(kind)
    lost = moments.filter("fresh").group_by("node").len("losses").join(by_node, on="node")
    if groups.height < 2 or groups.height == by_node.height or lost.is_empty():
        return _Tested([], np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    losses = groups.join(lost.group_by(kind).agg(pl.col("losses").sum()), on=kind, how="left", maintain_order="left")
    counts = losses["losses"].fill_null(0).to_numpy().astype(np.int64)
    days, sizes = groups["days"].to_numpy(), lost["losses"].to_numpy().astype(np.int64)
    shares = days / days.sum()
    p = [_middle_p(_compound(sizes, float(share)), int(n)) for share, n in zip(shares, counts, strict=True)]
    return _Tested(groups[kind].to_list(), counts, days, np.array(p))


def _nodes(moments: pl.DataFrame, exposed: pl.DataFrame, _: str) -> _Tested:
    """Each node: how many different cards failed in it, or one after another in a slot, of rates that nodes have."""
    fresh = moments.filter("fresh")
    by_node = exposed.group_by("node", maintain_order=True).agg(pl.col("days").sum(), pl.len().alias("sites"))
    by_node = by_node.join(fresh.group_by("node").len("losses"), on="node", how="left", maintain_order="left")
    losses = by_node["losses"].fill_null(0).to_numpy().astype(np.int64)
    days = by_node["days"].to_numpy()
    if by_node.height < 2 or losses.max(initial=0) < 2:
        return _Tested(by_node["node"].to_list(), losses, days, np.ones(len(days)))
    p = np.where(losses > 1, rate_tails(losses, days), 1.0)
    at_slot = fresh.drop_nulls("slot").group_by("node", "slot").len("losses")
    slots = exposed.drop_nulls("slot").join(at_slot, on=["node", "slot"], how="left", maintain_order="left")
    counts = slots["losses"].fill_null(0).to_numpy().astype(np.int64)
    if counts.max(initial=0) > 1:
        of_slots = np.where(counts > 1, rate_tails(counts, slots["days"].to_numpy()), 1.0)
        best = slots.select("node", pl.Series("p", of_slots)).group_by("node").agg(pl.col("p").min())
        joined = by_node.join(best, on="node", how="left", maintain_order="left")
        repeated = np.minimum(joined["p"].fill_null(1.0).to_numpy() * by_node["sites"].to_numpy(), 1.0)
        p = simes(np.array([p, repeated]))
    return _Tested(by_node["node"].to_list(), losses, days, p)


_KINDS: dict[str, Callable[[pl.DataFrame, pl.DataFrame, str], _Tested]] = {
    "slot": _slots, "node": _nodes, "cage": _groups, "cabinet": _groups,
}  # fmt: skip


def rate_tails(losses: Ints, days: Floats) -> Floats:
    """(n,) the chance that a place has so many losses or more, where rates of places differ as those of the others do.

    Losses are Poisson, with a mean of rate times days; rates are gamma or lognormal. Shape and mean are averaged over
    what the other places leave possible (Bayes, on a grid), so that a place does not vouch for itself.
    """
    kinds, kind = np.unique(np.column_stack([losses, np.round(np.log(days), 1)]), axis=0, return_inverse=True)
    counts, exposure = kinds[:, 0], np.exp(kinds[:, 1])
    counts_of_kind = np.bincount(kind.ravel())
    means = _MEANS * (losses.sum() + 0.5) / days.sum()
    expected = exposure[:, None, None] * means[None, :, None] * _RATES
    shapes = _shapes()
    density = poisson(counts[:, None, None], expected) @ shapes  # (kinds, means, shapes)
    tail = poisson_at_least(counts[:, None, None], expected) @ shapes
    log_density = np.log(np.maximum(density, 1e-300))
    prior = np.log([*_DISPERSION.values(), *_LOG_SPREAD.values()]) + 0.5 * np.log(means)[:, None]
    log_weight = np.tensordot(counts_of_kind, log_density, axes=1) - log_density + prior
    weight = np.exp(log_weight - log_weight.max(axis=(1, 2), keepdims=True))
    p = (weight * tail).sum(axis=(1, 2)) / weight.sum(axis=(1, 2))
    return np.asarray(p[kind.ravel()], dtype=np.float64)


def _shapes() -> Floats:
    """(rates, shapes) the weights of `_RATES` under each law, of a mean of 1."""
    log_rates = np.log(_RATES)
    # Densities of the logarithm of the rate, without their constant factors: gamma laws, then normal ones.
    laws = [np.exp(shape * (log_rates - _RATES)) for shape in _DISPERSION]
    laws += [np.exp(-((log_rates / spread + spread / 2) ** 2) / 2) for spread in _LOG_SPREAD]
    weights = np.column_stack(laws)
    return np.asarray(weights / weights.sum(axis=0), dtype=np.float64)


def _compound(sizes: Ints, share: float) -> Floats:
    """The law of the losses in a group, where what each node lost falls to it with this chance: a chance by number."""
    law = np.ones(1)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        spread = np.zeros(int(size) * int(count) + 1)
        spread[:: int(size)] = binomial(int(count), share)
        law = np.convolve(law, spread)
    return law


# -- what is named ----------------------------------------------------------------------------------------


def _named(kind: str, versions: list[_Tested], moments: list[pl.DataFrame], exposed: pl.DataFrame) -> list[Verdict]:
    """The places of a kind that are named; `versions` and `moments`: of all events, and without those of memory."""
    names = versions[0].names
    if not names:
        return []
    p = np.ones((len(versions), len(names)))
    for row, version in enumerate(versions):
        p_of_place = dict(zip(version.names, version.p, strict=True))
        p[row] = [p_of_place.get(name, 1.0) for name in names]
    joined = simes(p)
    q = discoveries(joined, len(joined))
    lossy = []
    for place in np.flatnonzero((q <= ERROR_RATE) & (joined <= _MOST_P.get(kind, 1.0))):
        clearest = int(p[:, place].argmin())
        version = versions[clearest]
        at = version.names.index(names[place])
        low, ratio, high = _ratio(version, at)
        if ratio is not None and ratio < RELEVANT:
            continue
        members = exposed.filter(pl.col(kind) == names[place])
        lost = moments[clearest].filter(pl.col("node").is_in(members["node"].implode()))
        lost = lost.filter(pl.col("slot") == names[place]) if kind == "slot" else lost.filter("fresh")
        slots = lost.drop_nulls("slot")["slot"].value_counts(sort=True) if kind == "node" else None
        again = slots.row(0) if slots is not None and slots.height and slots["count"][0] > 1 else (None, 0)
        losses, of_node = int(version.losses[at]), kind == "node"
        measured = [Measured(Quantity.CARDS_LOST, value=losses, peers=int(version.losses.sum() - losses))]
        if again[0] is not None:
            measured.append(Measured(Quantity.LOST_IN_TURN, n=again[1], text=again[0]))
        first, last = lost["ts"].min(), lost["ts"].max()
        assert isinstance(first, datetime)
        assert isinstance(last, datetime)
        effect, low, high = (None if end is None else 100 * (end - 1) for end in (ratio, low, high))
        lossy.append(
            Verdict(
                level=Level.NODE if of_node else Level.BATCH if kind == "cabinet" else Level.SLOT,
                name=names[place] if of_node else f"{kind} {names[place]}", gpus=tuple(members["gpu"]), cluster="",
                model=None, workloads=(), kind=Kind.LOSES,
                state=State.CONFIRMED if last - first >= timedelta(hours=6) else State.SUSPECTED, effect_pct=effect,
                low_pct=low, high_pct=high, p=float(joined[place]), q=float(q[place]), n=len(names), first_seen=first,
                last_seen=last, action=Action.CHECK_PLACE if of_node else Action.COMPARE_PLACES,
                measured=tuple(measured), reference=ComparedWith.NODES if of_node else ComparedWith.PLACES,
                figure=LOSSES,
            )
        )  # fmt: skip
    return lossy


def _ratio(look: _Tested, at: int) -> tuple[float | None, float | None, float | None]:
    """How many times as many losses as the others a place has in the same time, with its 95 % interval (Clopper and
    Pearson, Biometrika 26, 1934): low, ratio, high."""
    losses_here, losses = int(look.losses[at]), int(look.losses.sum())
    share = look.days[at] / look.days.sum()
    if losses_here == losses:
        return None, None, None
    smallest, largest = share_interval(losses_here, losses)
    low, ratio, high = (part / (1 - part) * (1 - share) / share for part in (smallest, losses_here / losses, largest))
    return low, ratio, high


# -- what a store holds -----------------------------------------------------------------------------------


def places_of(store: Store, cluster: str, since: datetime | None = None) -> Findings:
    """The places of a cluster that lose more cards than others.

    `since` (UTC, without zone): events before are left out.
    """
    columns = ("ts", "gpu", "node", "pci_bus_id", "code")
    events = store.collect(store.scan("events").filter((pl.col("cluster") == cluster) & IS_FACT).select(columns))
    if since is not None:
        events = events.filter(pl.col("ts").is_null() | (pl.col("ts") >= since))
    if events.height < 2:
        return Findings()
    whole_gpus = store.scan("gpus").filter((pl.col("cluster") == cluster) & pl.col("parent").is_null())
    cards = store.collect(whole_gpus.select("gpu", "node", "slot", "cabinet", "pci_bus_id", "first_seen"))
    lossy = places(events, cards, until=_until(store, cluster), since=since, cluster=cluster)
    members = pl.Series([gpu for row in lossy.rows for gpu in row.gpus], dtype=pl.String).unique()
    known = {row["gpu"]: row for row in gpus_of(store, cluster, members, {}).iter_rows(named=True)}
    rows = []
    for row in lossy.rows:
        models = {known[gpu]["model"] for gpu in row.gpus}
        model = models.pop() if len(models) == 1 else None
        rows.append(replace(row, gpus=tuple(known[gpu]["name"] for gpu in row.gpus), model=model))
    return replace(lossy, rows=tuple(rows))


def _until(store: Store, cluster: str) -> datetime:
    """When the observation of a cluster ended: the newest event, run or reading, but not in the future."""
    newest = [
        store.collect(store.scan(table).filter(pl.col("cluster") == cluster).select(pl.col(column).max())).item()
        for table, column in (("events", "ts"), ("runs", "ended"), ("latest", "ts"))
    ]
    now = datetime.now(UTC).replace(tzinfo=None)
    measured = max((at for at in newest[1:] if at is not None), default=now)  # a simulated fleet may be of the future
    return min(max((at for at in newest if at is not None), default=now), max(now, measured))
