"""Places that lose GPUs: slots, nodes, cages and cabinets, whichever card is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from whorl.analysis.verdicts import Kind, Level
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.judgements import newest
from whorl.analysis.verdicts.places import places
from whorl.analysis.verdicts.verdict import Findings, Gap
from whorl.cli import cli
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.sizes import count
from whorl.tests.stores import new_store

BEGAN = datetime.fromisoformat("2025-01-01")
YEAR = 365 * 86_400.0
NODES, SLOTS = 64, 8
Types = dict[str, pl.DataType | type[pl.DataType]]
CARDS: Types = {
    "gpu": pl.String, "node": pl.String, "slot": pl.Int64, "cabinet": pl.String, "pci_bus_id": pl.String,
    "first_seen": pl.Datetime("us"),
}  # fmt: skip
EVENTS: Types = {
    "ts": pl.Datetime("us"), "gpu": pl.String, "node": pl.String, "pci_bus_id": pl.String, "code": pl.Int64
}  # fmt: skip
Loss = tuple[float, int, int]  # seconds, node, slot


def happened(losses: Sequence[Loss], *, exchanged: bool = False) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The events and the cards of a fleet; `exchanged`: there is a new card a day after each loss."""
    cards = [
        (f"{node}-{slot}-0", f"n{node}", slot, None, None, BEGAN) for node in range(NODES) for slot in range(SLOTS)
    ]
    new: dict[tuple[int, int], int] = {}
    events = []
    for second, node, slot in sorted(losses):
        card, at = new.get((node, slot), 0), BEGAN + timedelta(seconds=second)
        events.append((at, f"{node}-{slot}-{card}", f"n{node}", None, 79))
        if exchanged:
            new[node, slot] = card + 1
            cards.append((f"{node}-{slot}-{card + 1}", f"n{node}", slot, None, None, at + timedelta(days=1)))
    return pl.DataFrame(events, schema=EVENTS, orient="row"), pl.DataFrame(cards, schema=CARDS, orient="row")


def drawn(seed: int, losses: int = 60, *, slot: float = 1.0, node_spread: float = 0.0) -> list[Loss]:
    """Losses at any time: those of slot 3 are so many times as likely as others, and rates of nodes differ."""
    random = np.random.default_rng(seed)
    rates = np.ones((NODES, SLOTS))
    rates[:, 3] *= slot
    if node_spread:
        rates *= random.gamma(1 / node_spread**2, size=(NODES, 1))
    places_of_losses = random.choice(rates.size, losses, p=(rates / rates.sum()).ravel())
    return [(random.uniform(0, YEAR), int(place) // SLOTS, int(place) % SLOTS) for place in places_of_losses]


def judged(losses: Sequence[Loss], *, exchanged: bool = False) -> Findings:
    return places(*happened(losses, exchanged=exchanged), until=BEGAN + timedelta(seconds=YEAR))


def names(judgement: Findings, kind: str) -> list[str]:
    return [row.name.removeprefix(f"{kind} ") for row in judgement.rows if row.name.startswith(kind)]


def stored(path: Path, events: pl.DataFrame, cards: pl.DataFrame, cluster: str = "c") -> Store:
    store = new_store(path)
    identities = cards.with_columns(pl.col("gpu").alias("uuid"), pl.col("first_seen").dt.epoch("ns"))
    happened_rows = events.with_columns(pl.lit("xid").alias("kind"), pl.col("ts").dt.epoch("ns"))
    tables = {
        name: arrow_rows(name, frame.with_columns(pl.lit(cluster).alias("cluster")).to_dict(as_series=False))
        for name, frame in (("gpus", identities), ("events", happened_rows))
    }
    store.append(tables, f"collected-{cluster}")
    return store


def test_a_slot_that_loses_more_is_named_and_equal_slots_are_not() -> None:
    """8 slots of 64 nodes, 60 losses. Of 300 fleets, 83 % with three times the rate were named, 5 % without."""
    fleets = count(200, short=25)
    worse = [names(judged(drawn(seed, slot=3.0), exchanged=seed % 2 == 0), "slot") for seed in range(fleets)]
    equal = [names(judged(drawn(seed, node_spread=1.0), exchanged=seed % 2 == 0), "slot") for seed in range(fleets)]
    assert sum("3" in slots for slots in worse) >= 0.7 * fleets
    assert sum(map(bool, equal)) <= 0.12 * fleets


def test_a_node_whose_cards_fail_one_after_another_is_named(tmp_path: Path) -> None:
    elsewhere = drawn(1, 10)
    cards_fail = [(YEAR * part, 5, 2) for part in (0.1, 0.3, 0.5, 0.8)]
    assert not judged([*elsewhere, *cards_fail]).rows  # that card is faulty, not its place
    assert not judged([*drawn(1, 60, node_spread=2.0), *cards_fail[:2]], exchanged=True).rows
    store = stored(tmp_path / "S", *happened([*elsewhere, *cards_fail], exchanged=True))
    result = CliRunner().invoke(cli, ["verdicts", "--store", str(store.root), "--json"])
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)["rows"][0]
    assert (row["level"], row["name"], row["kind"], row["state"]) == ("node", "n5", "loses GPUs", "confirmed")
    assert (row["figure"], row["n"], len(row["gpus"])) == ("losses", NODES, SLOTS)
    assert row["effect_pct"] > 1000
    assert row["q"] < 0.05
    assert newest(store)[0].rows[0].name == "n5"
    explained = CliRunner().invoke(cli, ["explain", "n5", "--store", str(store.root)])
    assert "4 of them one after another in slot 2" in explained.output


def test_a_slot_is_a_verdict_that_says_nothing_about_single_gpus(tmp_path: Path) -> None:
    store = stored(tmp_path / "S", *happened(drawn(4, slot=6.0)))
    judgement = judge(store)
    row = judgement.rows[0]
    assert (row.level, row.name, row.kind, len(row.gpus)) == (Level.SLOT, "slot 3", Kind.LOSES, NODES)
    of_gpu = judgement.by_key(pl.DataFrame({"gpu": ["0-3-0"], "name": ["n0/3"]}))
    assert not any(entry.kind is Kind.LOSES for rows in of_gpu.values() for entry in rows)
    shared = CliRunner().invoke(cli, ["explain", "slot 3", "--store", str(store.root)])
    assert shared.exit_code == 0, shared.output
    text = CliRunner().invoke(cli, ["verdicts", "--store", str(store.root)]).output
    assert "slot 3: loses GPUs" in text


@pytest.mark.parametrize(
    "losses",
    [
        [(YEAR * cut + slot, 7, slot) for cut in (0.2, 0.5, 0.7) for slot in range(SLOTS)],
        [(YEAR / 2 + second * 18.0, 7, 3) for second in range(200)],
        [(YEAR / 2 + node, node, 3) for node in range(0, NODES, 2)],
        [(YEAR / 2, node, 3) for node in range(NODES)],
    ],
    ids=["power cuts of a node", "one XID 200 times in an hour", "a storm of 32 nodes", "all at one time"],
)
def test_losses_at_one_moment_are_one_loss(losses: list[Loss]) -> None:
    assert not judged([*drawn(2, 20), *losses]).rows
    assert not judged(losses).rows


def test_a_cage_that_loses_more_is_named_where_names_of_nodes_tell_it() -> None:
    """Titan lost 3.6, 4.7 and 5.8 % of its GPUs in cages 0, 1 and 2: 200 cabinets here, one GPU a node."""
    random = np.random.default_rng(5)
    sites = [(f"c{at % 25}-{at // 25}c{cage}s{blade}n{node}", cage) for at in range(200) for cage in range(3)
             for blade in range(8) for node in range(4)]  # fmt: skip
    rates = np.array([0.036, 0.047, 0.058])
    lost = [place for place, (_, cage) in enumerate(sites) if random.random() < rates[cage]]
    cards = [(f"G{place}", name, 0, name.split("c")[1], None, BEGAN) for place, (name, _) in enumerate(sites)]
    at = [BEGAN + timedelta(seconds=random.uniform(0, YEAR)) for _ in lost]
    events = [(ts, f"G{place}", sites[place][0], None, 79) for place, ts in zip(lost, at, strict=True)]
    judgement = places(
        pl.DataFrame(events, schema=EVENTS, orient="row"), pl.DataFrame(cards, schema=CARDS, orient="row"),
        until=BEGAN + timedelta(seconds=YEAR),
    )  # fmt: skip
    assert [row.name for row in judgement.rows] == ["cage 2"]


def test_a_card_that_is_not_known_has_the_slot_of_its_address() -> None:
    """The kernel's log tells the node and the PCI address, in its own way of writing."""
    events, cards = happened(drawn(4, slot=6.0))
    slot = pl.col("gpu").str.extract(r"-(\d)-")
    events = events.with_columns(("0000:0" + slot + ":00.0").alias("pci_bus_id"), pl.lit(None, pl.String).alias("gpu"))
    address = ("00000000:0" + pl.col("slot").cast(pl.String) + ":00.0").alias("pci_bus_id")
    until = BEGAN + timedelta(seconds=YEAR)
    assert names(places(events, cards.with_columns(address), until=until), "slot") == ["3"]
    known_by_address = cards.with_columns(address, pl.lit(None, pl.Int64).alias("slot"))
    assert names(places(events, known_by_address, until=until), "slot") == ["00000000:03:00.0"]


@pytest.mark.long
def test_what_cannot_be_placed_is_said_and_names_nobody(tmp_path: Path) -> None:
    """Events of GPUs without a node, of the future and without a time; cabinets of one node; two alike clusters."""
    events, cards = happened([(YEAR * part, 5, 2) for part in (0.1, 0.3, 0.5)])
    lost = events.with_columns(pl.lit(None, pl.String).alias("node"))
    future = events.with_columns(pl.lit(datetime.fromisoformat("2199-01-01")).alias("ts"))
    undated = events.with_columns(pl.lit(None, pl.Datetime("us")).alias("ts"))
    unknown = cards.with_columns(pl.lit(None, pl.String).alias("node"))
    judgement = judge(stored(tmp_path / "S", lost, unknown))
    assert [row.kind for row in judgement.rows] == [Kind.LOST]
    assert [(no.why, no.n) for no in judgement.not_judged] == [(Gap.NO_RUNS, None), (Gap.EVENTS_NOWHERE, 3)]
    assert places(pl.concat([future, undated]), cards, until=BEGAN).not_judged[0].n == 6
    one_each = cards.with_columns(pl.col("node").alias("cabinet"))
    assert not [row for row in places(events, one_each, until=BEGAN).rows if row.level is not Level.NODE]
    store = stored(
        tmp_path / "T", *happened([(YEAR * part, 5, 2) for part in (0.1, 0.3, 0.5, 0.7)], exchanged=True), "a"
    )
    stored(tmp_path / "T", events, cards, "b")
    assert [bool(judge(store, cluster=name).rows[0].level is Level.NODE) for name in "ab"] == [True, False]
