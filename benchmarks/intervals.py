"""How often whorl's intervals hold what they are about: on the Longhorn files and on made fleets. Prints JSON.

    python benchmarks/intervals.py > benchmarks/results/intervals.json

    levels       the 95 % interval of a GPU's level in another sitting, at every cut of the dates of Longhorn's SGEMM,
                 both ways: the interval from one part, the level in the other. A cut's own interval (Wilson) counts as
                 many GPUs as there would be if those of a node were not alike (`n_effective`).
    sittings     the same on made fleets whose last sitting is kept back: two to four weeks after the others,
                 which are a day, a week or a month apart.
    gains        the 90 % interval of what `advise` says that a choice gains, at the same cuts and on made fleets.
    variability  the 95 % intervals of `variability`, in made fleets whose GPUs share an effect of node or cabinet.

Nothing is asserted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from whorl.analysis import measurements, variability
from whorl.analysis.placement import Scores, advise, scores, sets
from whorl.analysis.verdicts.compare import Compared, Fleet, compare
from whorl.analysis.verdicts.levels import levels
from whorl.analysis.verdicts.sittings import step_of
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, ends, say, share
from whorl.store import Store
from whorl.store.importing import Options, import_file

Floats = npt.NDArray[np.float64]
Random = np.random.Generator
Shape = Callable[[Random, tuple[int, ...]], Floats]
LONGHORN = Path(__file__).resolve().parents[2] / "shared" / "data" / "longhorn"
LEAST_IN_BOTH = 8
PER_NODE, RUNS = 4, 3
SIZES = (1, 2, 4, 8, 16)


def normal(rng: Random, size: tuple[int, ...]) -> Floats:
    return rng.standard_normal(size)


def t5(rng: Random, size: tuple[int, ...]) -> Floats:
    return np.asarray(rng.standard_t(5, size) / np.sqrt(5 / 3))


def gamma(rng: Random, size: tuple[int, ...]) -> Floats:
    """Skewed to the slow side."""
    return np.asarray((rng.gamma(2.0, 1.0, size) - 2.0) / np.sqrt(2.0))


SHAPES: dict[str, Shape] = {"normal": normal, "t5": t5, "gamma": gamma}


def summary(hits: list[npt.NDArray[np.bool_]], clusters: list[npt.NDArray[Any]], names: list[str]) -> dict[str, Any]:
    """The pooled share and that of each cut. `clusters`: of each hit, whose hits are alike.

    The variance of a share by clusters over that of independent hits, pooled over all cuts, says how many hits count.
    """
    by_cluster = plain = 0.0
    for held, node in zip(hits, clusters, strict=True):
        off = held - held.mean()
        by_cluster += float((np.bincount(np.unique(node, return_inverse=True)[1], off) ** 2).sum())
        plain += float((off**2).sum())
    design_effect = max(1.0, by_cluster / plain) if plain else 1.0
    cuts = []
    for name, held in zip(names, hits, strict=True):
        effective = len(held) / design_effect
        low, high = ends(effective * float(held.mean()), effective)  # type: ignore[arg-type]
        cuts.append(
            {
                "cut": name, "n": len(held), "n_effective": round(effective, 1), "share": round(float(held.mean()), 4),
                "interval": [round(low, 4), round(high, 4)],
            }
        )  # fmt: skip
    all_hits = np.concatenate(hits)
    return {
        "pooled": share(int(all_hits.sum()), len(all_hits)),
        "least": round(min(float(held.mean()) for held in hits), 4),
        "design_effect": round(design_effect, 2),
        "cuts": cuts,
    }


# -- levels ----------------------------------------------------------------------------------------------------------


def compared(runs: pl.DataFrame, gpus: pl.DataFrame) -> Compared | None:
    """Every GPU's place among its peers, from runs with gpu_no, at (days) and x (ln time)."""
    gpu, at, x = (runs[name].to_numpy() for name in ("gpu_no", "at", "x"))
    return compare(levels(gpu, at, x, gpus.height, step_of(x)), Fleet.of(gpus)[0])


def sgemm() -> tuple[pl.DataFrame, pl.DataFrame]:
    """The dated runs of Longhorn's SGEMM without duplicates, and its GPUs."""
    frame = pl.read_csv(LONGHORN / "sgemm.csv.gz", infer_schema_length=None).unique(maintain_order=True)
    node, cabinet = pl.col("node").cast(pl.Int64), pl.col("cabinet").cast(pl.String)
    has_place = (node >= 0) & (cabinet != "-1")
    frame = frame.filter(pl.col("ts") >= 0).select(
        "uuid", (pl.col("ts") / 86_400).alias("at"), pl.col("perf").log().alias("x"),
        node=pl.when(has_place).then(pl.format("{}-{}", cabinet, node)), cabinet=pl.when(has_place).then(cabinet),
    )  # fmt: skip
    gpus = frame.group_by("uuid").agg(pl.col("node", "cabinet").drop_nulls().first()).sort("uuid")
    gpus = gpus.with_columns(vbios=pl.lit(None, pl.String), driver=pl.lit(None, pl.String)).with_row_index("gpu_no")
    return frame.drop("node", "cabinet").join(gpus.select("uuid", "gpu_no"), on="uuid"), gpus


def cuts(at: Floats) -> Floats:
    """The days (UTC) on which a second part can begin."""
    return np.unique(np.floor(at))[1:]


def by_cut() -> dict[str, Any]:
    runs, gpus = sgemm()
    node = gpus["node"].fill_null("").to_numpy()
    alone = np.array([f"alone {number}" for number in range(len(node))])
    node = np.where(node == "", alone, node)
    hits, nodes, names = [], [], []
    for cut in cuts(runs["at"].to_numpy()):
        parts = [compared(runs.filter(part), gpus) for part in (pl.col("at") < cut, pl.col("at") >= cut)]
        for direction, (before, after) in (("forward", parts), ("backward", parts[::-1])):
            if before is None or after is None:
                continue
            in_both = np.isfinite(before.low) & np.isfinite(after.effect)
            if in_both.sum() >= LEAST_IN_BOTH:
                hits.append(((before.low <= after.effect) & (after.effect <= before.high))[in_both])
                nodes.append(node[in_both])
                names.append(f"{date(1970, 1, 1) + timedelta(days=float(cut))} {direction}")
    return summary(hits, nodes, names)


# -- sittings --------------------------------------------------------------------------------------------------------

SPACING = {"day": 1.0, "week": 7.0, "month": 28.0}
STILL, SLOW, MEMORY = 0.0007, 0.0027, 30.0
"""Standard deviations of what a sitting adds to a GPU and of what changes slowly, and in how many days the latter falls
to 37 % of itself: as SGEMM on Longhorn (V of `analysis/verdicts/variance.py`)."""


def made(rng: Random, shape: Shape, at: Floats, *, cabinets: float = 0.0, gpus: int = 256) -> Floats:
    """(gpus, sittings, runs) log times at these days. `cabinets`: the share of it that 32 GPUs have together."""
    own_level = 0.010 * shape(rng, (gpus, 1))

    def moves(count: int) -> Floats:
        slow = np.zeros((count, len(at)))
        for place, remembered in enumerate(np.exp(-np.diff(at, prepend=-np.inf) / MEMORY)):
            slow[:, place] = remembered * slow[:, place - 1] + np.sqrt(1 - remembered**2) * shape(rng, (count,))
        return STILL * shape(rng, (count, len(at))) + SLOW * slow

    moved = np.sqrt(1 - cabinets) * moves(gpus) + np.sqrt(cabinets) * np.repeat(moves(gpus // 32), 32, axis=0)
    log_times: Floats = (own_level + moved)[:, :, None] + 0.0008 * shape(rng, (gpus, len(at), RUNS))
    return log_times


def kept_back(fleets: int) -> list[dict[str, Any]]:
    rows = []
    gpus = pl.DataFrame({"gpu_no": np.arange(256), "node": [f"n{gpu // PER_NODE}" for gpu in range(256)]})
    gpus = gpus.with_columns(
        vbios=pl.lit(None, pl.String), driver=pl.lit(None, pl.String), cabinet=pl.format("r{}", pl.col("gpu_no") // 32)
    )
    for name, shape in {**SHAPES, "cabinets": normal}.items():
        for sittings in (1, 2, 4, 8):
            for spacing, days in SPACING.items():
                hits, clusters = [], []
                for number in range(fleets):
                    rng = np.random.default_rng([number, sittings, round(days)])
                    at: Floats = 20_000.0 + days * np.arange(sittings, dtype=float)
                    at = np.append(at, at[-1] + rng.uniform(14.0, 30.0))
                    x = made(rng, shape, at, cabinets=0.5 * (name == "cabinets"))
                    runs = pl.DataFrame(
                        {
                            "gpu_no": np.repeat(np.arange(256), len(at) * RUNS),
                            "at": np.tile(np.repeat(at, RUNS) + 0.01 * np.tile(np.arange(RUNS), len(at)), 256),
                            "x": x.ravel(),
                        }
                    )
                    places = compared(runs.filter(pl.col("at") < at[-1]), gpus)
                    assert places is not None
                    later = np.median(x[:, -1], axis=1)
                    held = (places.low <= later - np.median(later)) & (later - np.median(later) <= places.high)
                    hits.append(held)
                    clusters.append(np.arange(256) // 32)
                pooled = summary(hits, clusters, [str(number) for number in range(fleets)])
                row = {"population": name, "sittings": sittings, "spacing": spacing, **pooled["pooled"]}
                rows.append(row)
    return rows


# -- gains -----------------------------------------------------------------------------------------------------------


def part(store: Store, runs: pl.DataFrame, folder: Path) -> Store:
    """A store with these runs only."""
    of_part = pl.col("run_id").is_in(runs["run_id"].implode())
    part_store = Store.create(folder)
    tables = {name: store.collect(store.scan(name).filter(of_part)).to_arrow() for name in ("runs", "results")}
    part_store.append({**tables, "gpus": store.collect(store.scan("gpus")).to_arrow()}, "part")
    return part_store


def realised(scored: Scores, workload: str, later: dict[str, float]) -> Iterator[dict[str, Any]]:
    """What the sets of `advise` gain where the GPUs take the times `later`, beside what was promised."""
    nodes = {name: number for number, name in enumerate(sorted({node for node in scored.nodes if node}))}
    usable = [number for number, node in enumerate(scored.nodes) if node and scored.gpus[number] in later]
    times = np.array([[later[scored.gpus[number]] for number in usable]], dtype=np.float32)
    ground = sets.NodeLayout(np.array([nodes[scored.nodes[number] or ""] for number in usable], dtype=np.intp))
    for gpus in SIZES:
        advice = advise(scored, workload, gpus=gpus)
        for kind, chosen in (("packed", advice.packed), ("spread", advice.spread)):
            gain = next((gain for gain in advice.gains if (gain.choice, gain.against) == (kind, "random")), None)
            if chosen is None or gain is None or gain.lower == gain.upper:
                continue
            if kind == "packed":
                usual = sets.random_packed(times, ground, gpus, np.random.default_rng(1))
            else:
                usual = sets.random_spread(times, ground, gpus)
            assert usual is not None
            true = 1.0 - max(later[gpu] for gpu in chosen.gpus) / float(usual[0])
            yield {
                "gpus": gpus, "kind": kind, "held": bool(gain.lower <= true <= gain.upper),
                "off": true - gain.median, "half_width": (gain.upper - gain.lower) / 2,
            }  # fmt: skip


def of_splits(rows: list[dict[str, Any]]) -> dict[str, Any]:
    off = np.array([row["off"] for row in rows])
    return {
        **share(sum(row["held"] for row in rows), len(rows)),
        "bias_points": round(100 * float(off.mean()), 3),
        "rms_points": round(100 * float(np.sqrt((off**2).mean())), 3),
        "half_width_points": round(100 * float(np.median([row["half_width"] for row in rows])), 3),
    }


def real_gains() -> dict[str, Any]:
    rows, of_scores = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = Store.create(folder / "store")
        import_file(store, LONGHORN / "sgemm.csv.gz", Options(cluster="longhorn"))
        import_file(store, LONGHORN / "pagerank.csv.gz", Options(cluster="longhorn"))  # it says where GPUs stand
        runs = measurements(store, workloads=["sgemm"], run_ids=True).drop_nulls("began").cast({"gpu": pl.String})
        days = runs["began"].dt.date()
        for cut in days.unique().sort().to_list()[1:]:
            parts = [runs.filter(days < cut), runs.filter(days >= cut)]
            gpus_of_both = set(parts[0]["gpu"]) & set(parts[1]["gpu"])
            if len(gpus_of_both) < max(SIZES):
                continue
            parts = [runs_of_part.filter(pl.col("gpu").is_in(list(gpus_of_both))) for runs_of_part in parts]
            scored_parts = [
                scores(part(store, runs_of_part, folder / f"{cut}-{number}"), ["sgemm"])
                for number, runs_of_part in enumerate(parts)
            ]
            for direction, (before, after) in (("forward", scored_parts), ("backward", scored_parts[::-1])):
                raw = after.of["sgemm"].raw
                later = {gpu: float(level) for gpu, level in zip(after.gpus, raw, strict=True) if np.isfinite(level)}
                rows += [{"cut": f"{cut} {direction}", **row} for row in realised(before, "sgemm", later)]
                scored = before.of["sgemm"]
                level = np.array([later.get(gpu, np.nan) for gpu in before.gpus])
                in_both = np.isfinite(level) & np.isfinite(scored.lower)
                of_scores.append(((scored.lower <= level) & (level <= scored.upper))[in_both])
    by_cut: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_cut.setdefault(row["cut"], []).append(row)
    by_scores = [float(held.mean()) for held in of_scores if len(held)]
    held = np.concatenate(of_scores)
    of_all = share(int(held.sum()), len(held)) | {"least": round(min(by_scores), 4), "most": round(max(by_scores), 4)}
    return of_splits(rows) | {
        "scores": of_all,
        "cuts": {cut: of_splits(part) for cut, part in by_cut.items()},
    }


def made_gains(fleets: int) -> dict[str, Any]:
    """Fleets of 64 GPUs, measured three times a week apart, and again two to four weeks later."""
    by_shape = {}
    for name, shape in {**SHAPES, "cabinets": normal}.items():
        later = {}
        at = 20_000.0 + 7.0 * np.arange(3)
        with tempfile.TemporaryDirectory() as place:
            store = Store.create(Path(place) / "store")
            gpus = [f"GPU-{gpu:02d}" for gpu in range(64)]
            nodes = [f"n{gpu // PER_NODE:02d}" for gpu in range(64)]
            store.append({"gpus": pa.table({"cluster": ["c"] * 64, "gpu": gpus, "node": nodes})}, "gpus")
            for number in range(fleets):
                rng = np.random.default_rng([number, 7])
                times = np.append(at, at[-1] + rng.uniform(14.0, 30.0))
                x = 3.0 + made(rng, shape, times, cabinets=0.5 * (name == "cabinets"), gpus=64)
                workload = f"w{number:03d}"
                after = np.exp(np.median(x[:, -1], axis=1))
                later[workload] = dict(zip(gpus, (after / np.median(after)).tolist(), strict=True))
                n = 64 * 3 * RUNS
                began = (np.repeat(at, RUNS) + 0.01 * np.tile(np.arange(RUNS), 3)) * 86_400e6
                shared = {
                    "run_id": [f"{workload}-{run}" for run in range(n)], "cluster": ["c"] * n,
                    "workload": [workload] * n, "gpu": np.repeat(gpus, 3 * RUNS),
                }  # fmt: skip
                days = pa.array(np.tile(began, 64).astype(np.int64) * 1000, pa.timestamp("ns"))
                figures = {
                    "repeat": pa.array(np.zeros(n, np.int32)), "figure": ["time"] * n, "unit": ["ms"] * n,
                    "value": np.exp(x[:, :3]).ravel(),
                }  # fmt: skip
                tables = {"runs": pa.table({**shared, "began": days, "status": ["ok"] * n})}
                store.append({**tables, "results": pa.table(shared | figures)}, workload)
            scored = scores(store)
            by_shape[name] = of_splits([row for work, times in later.items() for row in realised(scored, work, times)])
    return by_shape


# -- variability -----------------------------------------------------------------------------------------------------

FIGURES = ("median", "fence_pct", "p95p5_pct", "cov_pct")


def fleet(rng: Random, shape: Shape, groups: tuple[int, int, int], shares: tuple[float, float]) -> pl.DataFrame:
    """Five runs of each GPU: GPUs differ by 2 %, runs by 1 %. `groups`: cabinets, nodes in each, GPUs in each;
    `shares`: of the variance between GPUs, that of the cabinet and that of the node."""
    cabinets, nodes, gpus = groups
    cabinet = np.repeat(shape(rng, (cabinets,)), nodes * gpus)
    node = np.repeat(shape(rng, (cabinets * nodes,)), gpus)
    own_level = shape(rng, (cabinets * nodes * gpus,))
    level = 2.0 * (np.sqrt(shares[0]) * cabinet + np.sqrt(shares[1]) * node + np.sqrt(1 - sum(shares)) * own_level)
    times = 100.0 + level[:, None] + (normal if shape is gamma else shape)(rng, (len(own_level), 5))
    gpu = np.repeat(np.arange(len(own_level)), 5)
    return pl.DataFrame({"gpu": gpu, "value": times.ravel()}).with_columns(
        pl.col("gpu").cast(pl.String), node=pl.format("n{}", pl.col("gpu") // gpus),
        cabinet=pl.format("r{}", pl.col("gpu") // (nodes * gpus)),
        cluster=pl.lit("c"), workload=pl.lit("w"), unit=pl.lit("ms"),
    )  # fmt: skip


def truth(shape: Shape, shares: tuple[float, float]) -> dict[str, float]:
    times = fleet(np.random.default_rng(1), shape, (12_500, 4, 4), shares)["value"].to_numpy().reshape(-1, 5)
    figures = {"icc": 0.8}
    for level, values in (("run", times.ravel()), ("gpu", np.median(times, axis=1))):
        p5, q1, median, q3, p95 = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
        figures |= {
            f"{level} median": median,
            f"{level} fence_pct": 400.0 * (q3 - q1) / median,
            f"{level} p95p5_pct": 100.0 * (p95 - p5) / median,
            f"{level} cov_pct": 100.0 * values.std() / values.mean(),
        }
    return {key: float(value) for key, value in figures.items()}


def of_variability(fleets: int) -> list[dict[str, Any]]:
    rows = []
    for effects, shares in (("none", (0.0, 0.0)), ("nodes", (0.0, 0.5)), ("cabinets", (0.4, 0.2))):
        for name, shape in SHAPES.items():
            true = truth(shape, shares)
            sizes = ((4, 8), (8, 8), (24, 4)) if effects == "cabinets" else ((1, 6), (1, 25), (1, 100))
            for groups in ((*size, PER_NODE) for size in sizes):
                say(f"variability: {effects}, {name}, {groups}")
                held_by_figure: dict[str, list[bool]] = {figure: [] for figure in true}
                widths: dict[str, list[float]] = {figure: [] for figure in true}
                drawn: dict[str, int] = {}
                for seed in range(fleets):
                    frame = fleet(np.random.default_rng([seed, groups[0]]), shape, groups, shares)
                    rows_of_levels = variability(frame, replicates=200)
                    intervals = {
                        f"{row.level} {figure}": row.interval[figure] for row in rows_of_levels for figure in FIGURES
                    }
                    icc = rows_of_levels[0].icc
                    intervals["icc"] = None if icc.low is None or icc.high is None else (icc.low, icc.high)
                    resampled = rows_of_levels[0].reasons["interval"].split(" that were")[0].split()[-1]
                    drawn[resampled] = drawn.get(resampled, 0) + 1
                    for figure, interval in intervals.items():
                        if interval is not None:
                            held_by_figure[figure].append(interval[0] <= true[figure] <= interval[1])
                            widths[figure].append(interval[1] - interval[0])
                rows.append(
                    {
                        "effects": effects, "population": name, "cabinets": groups[0], "gpus": int(np.prod(groups)),
                        "fleets": fleets, "resampled": drawn,
                        "figures": {figure: share(sum(held), len(held)) for figure, held in held_by_figure.items()},
                        "width": {figure: round(float(np.median(w)), 4) if w else None for figure, w in widths.items()},
                    }
                )  # fmt: skip
    return rows


PARTS = ("levels", "sittings", "gains", "made gains", "variability")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20, help="of each made population")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    arguments = parser.parse_args()
    began = datetime.now().astimezone()
    does: dict[str, Callable[[], Any]] = {
        "levels": by_cut,
        "sittings": lambda: kept_back(arguments.fleets),
        "gains": real_gains,
        "made gains": lambda: made_gains(arguments.fleets),
        "variability": lambda: of_variability(2 * arguments.fleets),
    }
    result: dict[str, Any] = {"benchmark": "intervals", "machine": machine("numpy", "polars")}
    for name in arguments.parts:
        say(name)
        real = name in ("levels", "gains")
        has_files = LONGHORN.is_dir() or not real
        result[name] = does[name]() if has_files else {"did_not_run": f"there is no folder {LONGHORN}"}
    result["took_s"] = round((datetime.now().astimezone() - began).total_seconds())
    print(as_json(result))


if __name__ == "__main__":
    main()
