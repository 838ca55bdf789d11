"""What large fleets are read and parted by: numbers in place of names, and one part at a time."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import parted
from whorl.analysis.runs.sittings import in_order


@pytest.mark.parametrize("most", [3, 70_000, 1 << 33])
@pytest.mark.parametrize("in_time", [True, False])
def test_the_order_by_owner_and_time_keeps_equal_ones_as_they_are(most: int, in_time: bool) -> None:
    random = np.random.default_rng(1)
    owner, at = random.integers(0, most, 500), np.round(random.random(500), 1)
    at = np.sort(at) if in_time else at
    assert in_order(owner, at).tolist() == np.lexsort((at, owner)).tolist()
    order = np.lexsort((at, owner))
    assert in_order(owner[order], at[order]).tolist() == list(range(500))


def test_parts_are_all_rows_by_name_also_those_without_one() -> None:
    runs = pl.DataFrame({"model": ["b", None, "a", "b"], "workload": ["w", "w", "w", "v"], "n": [1, 2, 3, 4]})
    found = {key: part["n"].to_list() for key, part in parted(runs, "model", "workload")}
    assert found == {(None, "w"): [2], ("a", "w"): [3], ("b", "v"): [4], ("b", "w"): [1]}
