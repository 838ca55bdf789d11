"""Files that are wrong in every way that the books must name: from `whorl import` to rows of problems."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.store import Store
from whorl.tests.analysis.energy.stored import Books, books

pytestmark = pytest.mark.usefixtures("stores_are_copied", "stores_stay_open")

GPUS = [f"GPU-0a1b2c3d-0000-1111-2222-33334444555{n}" for n in range(4)]
HEADER = "timestamp, host, index, uuid, name, power.draw [W], total_energy_consumption [mJ], utilization.gpu [%]"
BEGAN = datetime(2026, 11, 2, 12)  # noqa: DTZ001 - of streams, which have no zone
SECONDS = 600


def stream() -> str:
    """Readings of four GPUs, 100 W and 200 W by turns: one a second, for ten minutes."""
    lines, joules = [HEADER], [10**7] * len(GPUS)
    for second in range(SECONDS):
        moment = BEGAN + timedelta(seconds=second, milliseconds=7 * (second % 100))
        stamp = moment.strftime("%Y/%m/%d %H:%M:%S.%f")
        for gpu, uuid in enumerate(GPUS):
            busy = second // 60 % 2
            watts = 100 + 100 * busy + second % 7 / 10
            joules[gpu] += round(1000 * watts)
            lines.append(f"{stamp}, n1, {gpu}, {uuid}, NVIDIA A100-SXM4-40GB, {watts:.2f}, {joules[gpu]}, {100 * busy}")
    return "\n".join([*lines, ""])


def time(second: int) -> str:
    return (BEGAN + timedelta(seconds=second)).isoformat()


def kept(store: Store, tmp_path: Path, telemetry: str, *jobs: str) -> Books:
    """The books of a store after both files were imported as a user does it."""
    files = [tmp_path / "smi.csv", tmp_path / "jobs.csv"]
    files[0].write_text(telemetry)
    files[1].write_text("\n".join(["job_id,user,node,gpu,began,ended,share", *jobs, ""]))
    done = CliRunner().invoke(cli, ["import", "--store", str(store.root), *map(str, files[: 1 + bool(jobs)])])
    assert done.exit_code == 0, done.output
    found = books(store)
    whole = found.pieces.group_by("gpu").agg(pl.col("energy_j").sum()).drop_nulls("gpu")
    both = found.metered.join(whole, on="gpu")
    assert both.height == len(GPUS)
    assert both["energy_j"].to_list() == pytest.approx(both["metered_j"].to_list(), rel=1e-9)
    return found


def problems(found: Books) -> set[tuple[str | None, str, str | None]]:
    return {(row["gpu"], row["problem"], row["job_id"]) for row in found.problems.iter_rows(named=True)}


@pytest.mark.long
def test_each_wrong_job_has_a_row(store: Store, tmp_path: Path) -> None:
    found = kept(
        store, tmp_path, stream(),
        f'1,ada,n1,"0,1",{time(0)},{time(300)},1',
        f"2,ada,n1,{GPUS[0]},{time(200)},{time(400)},1",
        f"3,bob,n1,GPU-ffffffff-0000-1111-2222-333344445555,{time(0)},{time(300)},1",
        f"4,bob,n1,{GPUS[2]},{time(300)},{time(200)},1",
        f"5,bob,n9,7,{time(0)},{time(300)},1",
        f"6,bob,n1,,{time(400)},{time(500)},",
        f"7,eve,n1,{GPUS[3]},{time(0)},{time(300)},150 %",
        f"8,eve,n1,{GPUS[3]},{time(300)},{time(600)},50 %",
        f"9,eve,n1,{GPUS[2]},{time(100)},{time(200)},100 %",
    )  # fmt: skip
    said = problems(found)
    unknown = "GPU-ffffffff-0000-1111-2222-333344445555"
    assert {
        (unknown, "unknown GPU", "3"), ("n9/7", "unknown GPU", "5"), (None, "GPU not known", "6"),
        (GPUS[2], "ends before it begins", "4"), (GPUS[3], "refused at import", "7"),
    } <= said, said  # fmt: skip
    assert any(problem == "overlap" and gpu == GPUS[0] for gpu, problem, _ in said)
    of_jobs = {row["job_id"] for row in store.sql("select job_id from jobs_now").to_pylist()}
    assert of_jobs == {"1", "2", "3", "5", "6", "8", "9"}
