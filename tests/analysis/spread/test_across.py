"""`across`: which GPUs meet, and what is said when they do not."""

from __future__ import annotations

import json

import polars as pl
import pytest

from whorl.analysis import across
from whorl.analysis.spread.variability import Across
from whorl.tests.analysis.correlations import spearman


def runs(workload: str, medians: dict[str, float], cluster: str = "c", **columns: float) -> pl.DataFrame:
    rows = [(gpu, m + d) for gpu, m in medians.items() for d in (-1.0, 0.0, 1.0)]
    return pl.DataFrame(rows, schema=["gpu", "value"], orient="row").select(
        cluster=pl.lit(cluster), workload=pl.lit(workload), gpu="gpu", value="value", unit=pl.lit("ms"),
        **{name: pl.lit(value) for name, value in columns.items()},
    )  # fmt: skip


def identities(*rows: tuple[str, str | None, str | None]) -> pl.DataFrame:
    schema = {"gpu": pl.String, "uuid": pl.String, "place": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(cluster=pl.lit("c"))


def times(frame: pl.DataFrame, known: pl.DataFrame | None = None) -> Across:
    (row,) = [r for r in across(frame, identities=known) if (r.figure_a, r.figure_b) == ("time", "time")]
    return row


A = {f"U{i}": float(10 * (i * 7 % 11)) for i in range(8)}
B = {f"p{i}": float(10 * (i * 5 % 13)) for i in range(8)}


def test_a_place_meets_its_uuid() -> None:
    two_clusters = pl.concat([runs("a", A), runs("b", B)])
    assert (times(two_clusters).n, times(two_clusters).spearman) == (0, None)
    row = times(two_clusters, identities(*((f"U{i}", f"U{i}", f"p{i}") for i in range(8))))
    assert row.n == 8
    expected = spearman([A[f"U{i}"] for i in range(8)], [B[f"p{i}"] for i in range(8)])
    assert row.spearman == pytest.approx(expected)
    assert row.low is not None
    assert row.high is not None
    assert row.low < expected < row.high
    assert json.loads(json.dumps(row.as_dict())) == row.as_dict()


@pytest.mark.parametrize(
    ("extra", "unusable", "n"),
    [
        (("U9", "U9", "p0"), 1, 7),  # a place with two UUIDs
        (("U0", "U0", "p9"), 1, 7),  # a UUID with two places, of which only one is measured
        (("U0", "U0", "p1"), 2, 6),  # both
    ],
)
def test_an_ambiguous_link_is_not_used_and_counted(extra: tuple[str, str, str], unusable: int, n: int) -> None:
    board_rows = identities(*((f"U{i}", f"U{i}", f"p{i}") for i in range(8)), extra)
    row = times(pl.concat([runs("a", A), runs("b", B)]), board_rows)
    assert (row.n, row.ambiguous) == (n, unusable)


def test_a_third_name_leads_to_the_uuid_also_by_way_of_the_place() -> None:
    board_rows = identities(
        *((f"host-{i}", None, f"p{i}") for i in range(4)),
        *((f"host-{i}", f"U{i}", None) for i in range(4, 8)),
        *((f"U{i}", f"U{i}", f"p{i}") for i in range(4)),
    )
    hosts = {f"host-{i}": B[f"p{i}"] for i in range(8)}
    row = times(pl.concat([runs("a", A), runs("b", hosts)]), board_rows)
    assert row.n == 8


def test_too_few_or_constant_is_none_with_the_reason() -> None:
    few = times(pl.concat([runs("a", {"x": 1.0, "y": 2.0}), runs("b", {"x": 3.0, "y": 1.0})]))
    assert (few.n, few.spearman, few.low) == (2, None, None)
    assert few.reason == "fewer than 3 rows have both values"
    flat = times(pl.concat([runs("a", A), runs("b", dict.fromkeys(A, 5.0))]))
    assert (flat.n, flat.spearman) == (8, None)
    assert flat.reason == "time of b is constant (5)"
    perfect = times(pl.concat([runs("a", A), runs("b", A)]))
    assert perfect.spearman == pytest.approx(1.0)


def test_clusters_do_not_mix_and_pairs_come_sorted() -> None:
    frame = pl.concat([runs(w, A, cluster) for cluster in ("d", "c") for w in ("z", "y", "x")])
    correlations = [(row.cluster, row.workload_a, row.workload_b) for row in across(frame)]
    assert correlations == [(c, a, b) for c in ("c", "d") for a, b in (("x", "y"), ("x", "z"), ("y", "z"))]
    assert across(runs("a", A)) == []
