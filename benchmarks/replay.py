"""How fast job traces are replayed, against a plain simulation of the same rules. Prints JSON.

    python benchmarks/replay.py [--shared FOLDER] [--jobs 100000] [--saturated 16000] [--per-size 20000]

(a) Three traces under the six published policies, all in one process, from published files (../shared/data). The
    artifact of PAL (SC'24) took 83 to 700 s of wall time for one of these 18 on a contended machine of 2 cores;
    that is quoted, not measured here. Apart from these 18: the controls, PM-First and PAL without scores.
(b) 16,000 jobs on 256 GPUs, FIFO and PAL, which places all jobs anew in every round in which something happened.
(c) 100,000 jobs on 27,648 GPUs (4,608 nodes of 6), FIFO and packed with EASY backfill, at events.
(d) The cost of one event against the size of the fleet, for packed with and without EASY backfill.
(e) whorl against the plain simulation (benchmarks/plain_replay.py: lists that are scanned at every event) on the
    same jobs and the same fleet, on sizes at which that one ends soon. Both give the same finish of every job.

Jobs are drawn: exponential gaps, log-normal run times, limits of 1.2 to 5 times these. In (d) "narrow" jobs are of 1
to 8 GPUs on any fleet and come the faster the larger the fleet is: this is the cost of the structures. In "wide" the
widths grow with the fleet; a job of a hundred times as many GPUs costs more to place, whatever the algorithm, so the
cost of one GPU granted is given as well. One event is an arrival or a finish. The load is the ideal GPU-seconds over
the fleet's GPU-seconds in the time in which they come; as no GPU is always fast, a load a little below 1 fills the
fleet, and one above makes a queue that grows to the end. Costs are CPU time, as the machine may be shared. Every replay
of (b), (c) and (d) is a process of its own, whose peak memory (with the interpreter and the trace) is given. The
benchmark states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

from whorl.analysis.replay import Job, Options, Trace, World, find_policy, replay
from whorl.benchmarks.machine import machine
from whorl.benchmarks.plain_replay import PlainJob, plain_replay
from whorl.benchmarks.reporting import as_json

ROOT = Path(__file__).resolve().parents[1]
SEED = 20
MEAN_S = 3600.0
SIZES = (256, 1024, 4096, 27_648)
ARTIFACT_WALL_S = (83, 700)
NARROW = ((1, 40), (2, 20), (4, 20), (6, 10), (8, 10))
"""Widths in GPUs and how often each comes, in %."""
NODES = {256: 4, 1024: 4, 4096: 4, 27_648: 6}
"""GPUs of a node."""


def widths_of(gpus: int) -> tuple[tuple[int, int], ...]:
    """Widths in proportion to the fleet: from one GPU to an eighth of it."""
    node = NODES[gpus]
    return ((1, 40), (node, 25), (4 * node, 15), (gpus // 64, 12), (gpus // 16, 6), (gpus // 8, 2))


def drawn_trace(jobs: int, gpus: int, load: float, widths: tuple[tuple[int, int], ...]) -> Trace:
    draw = random.Random(SEED)
    sizes, weights = [width for width, _ in widths], [often for _, often in widths]
    mean_width = sum(a * b for a, b in widths) / sum(weights)
    gap = mean_width * MEAN_S / (gpus * load)
    now, found = 0.0, []
    for number, width in enumerate(draw.choices(sizes, weights, k=jobs)):
        ideal = draw.lognormvariate(0.0, 1.2) * MEAN_S / 2.0544  # the mean of the log-normal
        workload = draw.choice("ABCD")
        found.append(Job(str(number), now, width, ideal, workload, ideal * draw.uniform(1.2, 5.0)))
        now += draw.expovariate(1 / gap)
    return Trace(f"{jobs} drawn jobs", tuple(found))


def drawn_world(gpus: int, locality: float) -> World:
    draw = random.Random(SEED + 1)
    spread = {"A": 0.05, "B": 0.02, "C": 0.02, "D": 0.005}
    scores = {name: [draw.lognormvariate(0, sd) for _ in range(gpus)] for name, sd in spread.items()}
    return World.regular(gpus // NODES[gpus], NODES[gpus], scores, locality=locality)


# One replay in a process of its own


def one(given: dict[str, Any]) -> dict[str, Any]:
    gpus = given["gpus"]
    trace = drawn_trace(given["jobs"], gpus, given["load"], given["widths"])
    world = drawn_world(gpus, given.get("locality", 1.2))
    before = resource.getrusage(resource.RUSAGE_SELF)
    outcome = replay(trace, world, given["policy"], options=Options(backfill=given.get("backfill", "none")))
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    granted = sum(job.gpus for job in trace.jobs)
    waited = outcome.start_s - outcome.submit_s
    figures = outcome.metrics()
    return {
        "gpus": gpus,
        "jobs": given["jobs"],
        "policy": given["policy"],
        "backfill": given.get("backfill", "none"),
        "load": given["load"],
        "events": outcome.events,
        "wall_s": round(outcome.wall_s, 3),
        "cpu_s": round(used, 3),
        "us_per_event": round(1e6 * used / outcome.events, 1),
        "us_per_gpu_granted": round(1e6 * used / granted, 2),
        "peak_memory_mib": round(after.ru_maxrss / 1024, 1),
        "gpus_a_job": round(statistics.mean(job.gpus for job in trace.jobs), 1),
        "mean_wait_s": round(float(waited.mean()), 1),
        "jobs_that_went_past_another": int((outcome.start_s[1:] < outcome.start_s[:-1]).sum()),
        "util_held": round(figures.util_held, 4),
    }


def apart(**given: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(one, (given,))


# The parts


def published(shared: Path) -> dict[str, Any]:
    if not (shared / "traces").is_dir():
        return {"skipped": "the published traces and profiles are not there"}
    from whorl.analysis.replay.profiles import profiles, published_trace
    from whorl.analysis.replay.published import POLICIES, pal_sc24

    began = time.perf_counter()
    scores = profiles([shared / "longhorn"])
    rows, traces = [], []
    for number in (1, 2, 3):
        trace = published_trace(shared / "traces" / "sia-philly" / f"workload-{number}.csv")
        traces.append(trace)
        for policy in POLICIES:
            outcome = pal_sc24(trace, scores, policy)
            row = {"trace": trace.name, "policy": policy, "avg_jct_s": round(float(outcome.jct_s.mean()), 2)}
            rows.append(row | {"wall_s": round(outcome.wall_s, 3)})
    total = time.perf_counter() - began
    looking = [policy for policy in POLICIES if not find_policy(policy).blind]
    for trace, policy in product(traces, looking):
        pal_sc24(trace, scores, policy, flat=True)
    return {
        "all_18_with_reading_s": round(total, 3),
        f"their_{len(traces) * len(looking)}_controls_s": round(time.perf_counter() - began - total, 3),
        "artifact_wall_s_for_one_quoted": ARTIFACT_WALL_S,
        "rows": rows,
    }


def against_plain() -> list[dict[str, Any]]:
    rows = []
    for gpus, backfill in ((256, "none"), (256, "easy"), (1024, "none"), (1024, "easy"), (4096, "easy")):
        jobs = 2000
        world = drawn_world(gpus, 1.2)
        drawn = drawn_trace(jobs, gpus, 1.1, widths_of(gpus)).jobs
        only = Trace("", tuple(Job(j.name, j.submit_s, j.gpus, j.ideal_s, "A", j.limit_s) for j in drawn))
        plain = [PlainJob(j.submit_s, j.gpus, j.ideal_s, j.limit_s or j.ideal_s) for j in drawn]
        ours = []
        for _ in range(3):
            began = time.process_time()
            outcome = replay(only, world, options=Options(backfill=backfill))
            ours.append(time.process_time() - began)
        began = time.process_time()
        events = plain_replay(
            plain,
            gpus // NODES[gpus],
            NODES[gpus],
            world.rates.scores["A"].tolist(),
            world.rates.locality,
            backfill == "easy",
        )
        took = time.process_time() - began
        rows.append(
            {
                "gpus": gpus,
                "jobs": jobs,
                "backfill": backfill,
                "events": events,
                "whorl_cpu_s_median_of_3": round(statistics.median(ours), 3),
                "plain_cpu_s_once": round(took, 3),
                "ratio": round(took / statistics.median(ours), 1),
                "same_finishes": outcome.finish_s.tolist() == [job.finish for job in plain],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared" / "data", help="the published files")
    parser.add_argument("--jobs", type=int, default=100_000, help="of part (c)")
    parser.add_argument("--saturated", type=int, default=16_000, help="of part (b)")
    parser.add_argument("--per-size", type=int, default=60_000, help="jobs of each size of part (d)")
    given = parser.parse_args()
    biggest = SIZES[-1]
    result = {
        "schema": "whorl.benchmark.replay/1",
        "benchmark": "replay",
        "machine": machine("numpy"),
        "as_published": published(given.shared),
        "pal": [
            apart(gpus=256, jobs=given.saturated, policy="pal", load=load, widths=NARROW, locality=1.7)
            for load in (0.5, 0.9)
        ],
        "large": [
            apart(gpus=biggest, jobs=given.jobs, policy="packed", backfill="easy", load=load, widths=widths_of(biggest))
            for load in (0.9, 1.1)
        ],
        "by_size": {
            name: [
                apart(
                    gpus=gpus, jobs=given.per_size, policy="packed", backfill=backfill, load=load, widths=widths(gpus)
                )
                for gpus in SIZES
            ]
            for name, backfill, load, widths in (
                ("narrow", "none", 0.8, lambda _: NARROW),
                ("narrow_queued", "none", 1.1, lambda _: NARROW),
                ("narrow_queued_easy", "easy", 1.1, lambda _: NARROW),
                ("wide_queued_easy", "easy", 1.1, widths_of),
            )
        },
        "against_plain": against_plain(),
        "load_after": [round(load, 2) for load in os.getloadavg()],
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
