"""Policies that submit the next job of a chain, compared on a real log of Slurm (Lonestar6, Mirage study).

The named alternatives run in the same study: reactive, fixed leads, the mean of the last waits, `sbatch --test-only`
and a random forest. Each part of the log is tested by models that learned from what is before it:

    python -m whorl.benchmarks.chains ../shared/data/schedulers/mirage/ls6_a100_2022-11_2023-02.csv.gz \\
        > benchmarks/results/chains.json

`accepts` says which bars a part meets: interruption of p75 at most half of reactive with at most 1.7 h of overlap;
p75 below the line through fixed leads of 6 and 12 h on the plane of (interruption, overlap); p90 covers 85 to 95 %;
who knows the wait has no interruption. Progress goes to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

from whorl.analysis.chains.jobs_log import JobsLog, read_log
from whorl.analysis.chains.policy_rows import PolicyRow
from whorl.analysis.chains.study import StudyOptions, chain_study
from whorl.benchmarks.machine import machine

ALTERNATIVES = ("reactive", "lead6", "lead12", "average", "test-only", "forest", "known")
POLICIES = (*ALTERNATIVES, "p50", "p75", "p90")
COST = 0.5
PARTS = (
    ("2023-02-01", "2023-03-01", (72, 76, 80)),
    ("2023-01-15", "2023-02-15", (72,)),
    ("2023-01-01", "2023-02-01", (72,)),
    ("2022-12-15", "2023-01-15", (72,)),
)
"""Tested from, the end of the log that is read, and cluster sizes."""


def main(path: str) -> None:
    """Study every part and print JSON."""
    log = read_log(path)
    parts = [
        _part(log, test_from, until, cluster_nodes, nodes)
        for test_from, until, sizes in PARTS
        for cluster_nodes in sizes
        for nodes in (1, 8)
    ]
    document = {
        "machine": machine("numpy", "scikit-learn"),
        "log": {"jobs": len(log), "source": path.rsplit("/", 1)[-1]},
        "cost": COST,
        "parts": parts,
    }
    print(json.dumps(document, indent=1))


def _part(log: JobsLog, test_from: str, until: str, cluster_nodes: int, nodes: int) -> dict[str, Any]:
    test_from_s, until_s = (datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() for day in (test_from, until))
    before_s = time.process_time()
    options = StudyOptions(cluster_nodes, nodes, POLICIES, test_from_s, COST)
    rows = {row.policy: row for row in chain_study(log.until(until_s), options=options)}
    cpu_s = time.process_time() - before_s
    print(f"{test_from} {cluster_nodes} nodes, jobs of {nodes}: {cpu_s:.0f} s of CPU", file=sys.stderr)
    return {
        "test_from": test_from,
        "log_until": until,
        "cluster_nodes": cluster_nodes,
        "nodes": nodes,
        "cpu_s": round(cpu_s, 1),
        "accepts": _accepts(rows),
        "rows": [_rounded(row.as_dict()) for row in rows.values()],
    }


def _accepts(rows: dict[str, PolicyRow]) -> dict[str, bool]:
    quantile, short, long = rows["p75"], rows["lead6"], rows["lead12"]
    # Below the line, whichever way it falls: seen from the origin, on the near side of it.
    along = (long.interruption_h - short.interruption_h, long.overlap_h - short.overlap_h)
    aside = (quantile.interruption_h - short.interruption_h, quantile.overlap_h - short.overlap_h)
    return {
        "half_of_reactive": quantile.interruption_h <= 0.5 * rows["reactive"].interruption_h,
        "overlap_at_most_1.7_h": quantile.overlap_h <= 1.7,
        "below_line_of_leads": along[0] * aside[1] - along[1] * aside[0] > 0,
        "p90_covers_85_to_95": 85 <= (rows["p90"].coverage_pct or 0.0) <= 95,
        "known_has_0": rows["known"].interruption_h == 0,
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(figure, 3) if isinstance(figure, float) else figure for key, figure in row.items()}


if __name__ == "__main__":
    main(sys.argv[1])
