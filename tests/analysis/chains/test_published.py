"""The published simulation of the Mirage study: its samples, and those of an independent restatement of it."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, datetime

import numpy as np
import pytest

from whorl.analysis.chains.published import published_policies, published_rows, published_samples, published_starts
from whorl.errors import InputError
from whorl.tests.analysis.chains.logs import CLUSTER_NODES, LONESTAR, drawn_log, lonestar, needs_lonestar
from whorl.tests.sizes import is_long, sample

DAY_S = 86400.0
ARTIFACT = [
    ("2023-02-23", 1, "reactive", 130_440, 104),
    ("2023-01-24", 8, "reactive", 52_440, 426),
    ("2023-01-16", 1, "average", 18_480, 342),
    ("2023-02-21", 8, "average", 149_940, 0),
    ("2023-01-08", 1, "reactive", 42_000, 271),
]
"""What the study's own program printed: begin, nodes, policy, seconds from end to start, mean wait in minutes."""


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.long
@needs_lonestar
@pytest.mark.parametrize("nodes", [1, 8])
def test_samples_are_those_of_the_restated_simulator(nodes: int) -> None:
    with gzip.open(LONESTAR.with_name(f"baselines_nodes{nodes}.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    starts = published_starts(lonestar())
    assert starts.tolist() == [seconds(row["start"]) for row in rows]
    rows = rows if is_long() else sample(rows, short=6)
    starts = np.array([seconds(row["start"]) for row in rows])
    samples = published_samples(lonestar(), starts, cluster_nodes=CLUSTER_NODES, nodes=nodes)
    assert [{name: str(cell) for name, cell in chain.as_row().items()} for chain in samples] == rows
    reactive, average = published_rows(samples, ["reactive", "average"])
    assert reactive.overlap_h == 0
    assert average.interruption_h <= reactive.interruption_h
    if is_long():
        figures = [round(figure, 2) for row in (reactive, average) for figure in (row.interruption_h, row.overlap_h)]
        assert figures == ([3.77, 0, 3.08, 0.36] if nodes == 1 else [6.58, 0, 5.65, 0.17])
        assert [round(row.none_pct, 1) for row in (reactive, average)] == ([55.7, 60.2] if nodes == 1 else [45.9, 48.5])


@needs_lonestar
def test_samples_are_those_of_the_artifact() -> None:
    for day, nodes, policy, reward_s, mean_wait_min in sample(ARTIFACT, short=2):
        (chain,) = published_samples(lonestar(), np.array([seconds(day)]), cluster_nodes=CLUSTER_NODES, nodes=nodes)
        assert (60 * chain.minutes(policy), chain.mean_wait_min) == (reward_s, mean_wait_min)


def test_only_windows_that_lie_in_the_log_are_told() -> None:
    log = drawn_log(1, 3000, load=0.5)  # from 2022-11-01 on
    end_s = -(-log.submit_s[-1] // DAY_S) * DAY_S
    starts = published_starts(log)
    assert starts[0] == seconds("2022-11-01")
    assert starts[-1] + 5 * DAY_S <= end_s < starts[-1] + 5 * DAY_S + 4 * 3600 + 1
    assert published_starts(log, since_s=seconds("2022-11-05")).tolist() == starts[24:].tolist()
    with pytest.raises(InputError, match="no whole window"):
        published_starts(log, since_s=log.submit_s[-1])


def test_a_log_with_wider_jobs_than_the_cluster_is_refused() -> None:
    log = drawn_log(1, 100)
    with pytest.raises(InputError, match="asks for 8 nodes, and the cluster has 4"):
        published_samples(log, log.submit_s[:1], cluster_nodes=4, nodes=1)


def test_policies_that_are_not_published_are_left_out_and_refused_where_there_is_no_other() -> None:
    assert published_policies(["p75", "average", "reactive"]) == ["average", "reactive"]
    with pytest.raises(InputError, match="--policy p75,p90"):
        published_policies(["p75", "p90"])


def test_an_empty_cluster_makes_no_chain_wait() -> None:
    log = drawn_log(1, 20, load=0.01)
    (chain,) = published_samples(log, np.array([log.submit_s[-1] + DAY_S]), cluster_nodes=16, nodes=16)
    assert (chain.first_start_min, chain.reactive_min, chain.average_min) == (2880, 0, 0)
