"""`whorl import` of what `scontrol show job -d` of a real Slurm prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.tests.slurm.daemons import GPUS, Slurm

pytestmark = pytest.mark.slurm


@pytest.mark.long(short=1)
@pytest.mark.parametrize("options", [("-d",), ("-d", "-o")])
def test_the_gpus_of_jobs_are_those_that_slurm_gave(
    options: tuple[str, ...], slurm: Slurm, tmp_path: Path, store: Store
) -> None:
    whole_job = slurm.submit("-N2", f"--gres=gpu:{GPUS}")
    nodes = slurm.nodes_of(whole_job)
    parts = [slurm.submit("-N1", "--gres=gpu:1", user=user) for user in ("alice", "bob")]
    node_of_job = {job: slurm.nodes_of(job)[0] for job in parts}
    never = slurm.submit("-N1", "--gres=gpu:1", "--begin=now+1hour")
    assert slurm.run("scancel", never).returncode == 0
    waits = slurm.submit("-N1", "--gres=gpu:1", "--begin=now+1hour")
    path = tmp_path / "scontrol.txt"
    path.write_text(slurm.run("scontrol", *options, "show", "job").stdout)
    report = import_file(store, path, Options(time_zone="UTC"))
    assert report.refusals == {}
    assert any("known by Slurm's index (IDX) only" in note for note in report.notes)
    rows = store.sql(
        'select job_id, node, allocation, ended, "user", began is not null as has_begun from jobs'
    ).to_pylist()
    of_whole = {tuple(row["allocation"].split("@")[:2]) for row in rows if row["job_id"] == whole_job}
    assert of_whole == {(whole_job, f"{node} IDX {index}") for node in nodes for index in range(GPUS)}
    of_parts = {job: [row for row in rows if row["job_id"] == job] for job in parts}
    assert {job: [row["node"] for row in jobs] for job, jobs in of_parts.items()} == {
        job: [node] for job, node in node_of_job.items()
    }
    assert len({row["allocation"].split("@")[1] for jobs in of_parts.values() for row in jobs}) == 2
    assert {row["user"] for row in of_parts[parts[1]]} == {"bob"}
    assert all(row["ended"] is None and row["has_begun"] for row in rows if row["job_id"] in {whole_job, *parts})
    assert not {waits, never} & {row["job_id"] for row in rows}
