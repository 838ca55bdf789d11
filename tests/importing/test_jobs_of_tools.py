"""Who had which GPU, as tools of a site say it besides the books: pages of exporters, and scontrol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime as at
from pathlib import Path
from typing import Any

import pytest

from whorl.jobs.accounting.importing import JobSources, import_jobs
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.schema import arrow_rows

# ruff: noqa: DTZ001, E501 - the store's times are UTC without a zone; lines are as long as the tools write them

GPUS = [f"GPU-aaaaaaaa-0000-0000-0000-00000000000{n}" for n in range(2)]
TEN_MS = 1_777_888_800_000  # 2026-05-04 10:00
STEP_MS = 30_000


def _pages(jobs: Sequence[tuple[str, str]], began_ms: int = TEN_MS) -> str:
    """Pages of dcgm-exporter, one each 30 s: the label `hpc_job` of two GPUs; "" where it has none."""
    return "".join(
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="{GPUS[n]}",Hostname="n1"{f",hpc_job={chr(34)}{job}{chr(34)}" if job else ""}}} {50 + n} {began_ms + page * STEP_MS}\n'
        for page, labels in enumerate(jobs)
        for n, job in enumerate(labels)
    )


def _import(store: Store, folder: Path, text: str, name: str = "file", **options: Any) -> Any:
    path = folder / name
    path.write_text(text)
    return import_file(store, path, Options(**options))


def _jobs(store: Store, view: str = "jobs_now") -> list[tuple[Any, ...]]:
    rows = store.sql(
        f'select job_id, node, gpu, began, ended, source, "user" from {view} order by began, gpu, job_id, node'
    )
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_the_label_of_dcgm_exporter_is_a_job_from_its_first_page_to_its_last(tmp_path: Path, store: Store) -> None:
    report = _import(store, tmp_path, _pages([("", "9"), ("7", "9"), ("7", "9"), ("8", "9"), ("", "0")]))
    assert report.total.kept == 10
    assert any("3 rows of jobs, 3 of them new" in note for note in report.notes)
    time = [at(2026, 5, 4, 10, page // 2, page % 2 * 30) for page in range(5)]
    assert _jobs(store) == [
        ("9", "n1", GPUS[1], time[0], time[3], "exporter", None),
        ("7", "n1", GPUS[0], time[1], time[2], "exporter", None),
        ("8", "n1", GPUS[0], time[3], time[3], "exporter", None),
    ]


def test_a_job_of_the_last_page_runs_and_goes_on_in_the_next_file(tmp_path: Path, store: Store) -> None:
    _import(store, tmp_path, _pages([("7", "7")]), "1")
    ten = at(2026, 5, 4, 10)
    assert _jobs(store) == [("7", "n1", gpu, ten, None, "exporter", None) for gpu in GPUS]
    _import(store, tmp_path, _pages([("7", "7"), ("", "7")], TEN_MS + 3_600_000), "2")
    ends = (at(2026, 5, 4, 11), None)
    assert _jobs(store) == [("7", "n1", gpu, ten, end, "exporter", None) for gpu, end in zip(GPUS, ends, strict=True)]


def test_the_gauges_of_jobstats(tmp_path: Path, store: Store) -> None:
    def series(name: str, n: int, *values: int) -> dict[str, Any]:
        labels = {"__name__": name, "instance": "n2:9445", "job": "scrape", "minor_number": str(n), "uuid": GPUS[n]}
        return {"metric": labels, "values": [[TEN_MS / 1000 + 30 * k, str(value)] for k, value in enumerate(values)]}

    gauges = [series("nvidia_gpu_jobId", 0, 0, 99, 99, 0), series("nvidia_gpu_jobId", 1, 99, 99, 99, 99)]
    answer = {
        "status": "success",
        "data": {"resultType": "matrix", "result": [*gauges, series("nvidia_gpu_jobUid", 1, 5001)]},
    }
    report = _import(store, tmp_path, json.dumps(answer))
    assert (report.kind, report.total.rows, report.total.kept) == ("jobs", 2, 2)
    assert _jobs(store) == [
        ("99", "n2", GPUS[1], at(2026, 5, 4, 10), None, "exporter", "5001"),
        ("99", "n2", GPUS[0], at(2026, 5, 4, 10, 0, 30), at(2026, 5, 4, 10, 1), "exporter", None),
    ]
    assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 0}]


def test_what_an_exporter_names_counts_and_not_the_index_of_scontrol_too(tmp_path: Path, store: Store) -> None:
    _import(store, tmp_path, _pages([("7", ""), ("7", "")]))
    _import(store, tmp_path, _scontrol(7, "n1 gpu:1(IDX:0)"), "scontrol")
    assert [(row[0], row[2], row[5]) for row in _jobs(store)] == [("7", GPUS[0], "exporter")]


def test_accounting_takes_the_gpus_of_a_shared_node_from_what_an_exporter_showed(tmp_path: Path, store: Store) -> None:
    _import(store, tmp_path, _pages([("7", "8"), ("7", "8")]))
    books = tmp_path / "sacct.txt"
    seconds = TEN_MS // 1000 - 60
    books.write_text(
        "JobIDRaw|JobID|Cluster|User|State|NodeList|Submit|Start|End|AllocTRES\n"
        + "".join(
            f"{job}|{job}|fleet|ann|COMPLETED|n1|{seconds}|{seconds}|{seconds + 600}|gres/gpu=1\n" for job in (7, 8)
        )
    )
    assert import_jobs(store, JobSources(file=books)).with_gpus == 2
    rows = [(job, gpu, source) for job, _, gpu, _, _, source, _ in _jobs(store)]
    assert rows == [("7", GPUS[0], "sacct"), ("8", GPUS[1], "sacct")]


HEAD = """JobId={job} {array}JobName=train my model
   UserId=alice(5001) GroupId=users(100) MCS_label=N/A
   Priority=4294901756 Nice=0 Account=phys QOS=normal
   JobState={state} Reason=None Dependency=(null)
   SubmitTime=2026-05-04T09:59:00 EligibleTime=2026-05-04T09:59:00
   StartTime={start} EndTime=2026-05-04T12:00:00 Deadline=N/A
   Partition=gpu AllocNode:Sid=login1:123
   NodeList={nodes}
   ReqTRES=cpu=64,node=2,billing=64,gres/gpu=8
"""


def _scontrol(
    job: int,
    *gres: str,
    state: str = "RUNNING",
    start: str = "2026-05-04T10:00:00",
    nodes: str = "n03",
    array: str = "",
) -> str:
    lines = "".join(
        f"     Nodes={line.split()[0]} CPU_IDs=0-31 Mem=500000 GRES={line.partition(' ')[2]}\n" for line in gres
    )
    return (
        HEAD.format(job=job, state=state, start=start, nodes=nodes, array=array)
        + lines
        + "   Command=/home/alice/run.sh\n\n"
    )


@pytest.mark.long(short=1)
@pytest.mark.parametrize("one_line", [False, True])
def test_scontrol_numbers_the_gpus_of_each_node(one_line: bool, tmp_path: Path, store: Store) -> None:
    jobs = [
        _scontrol(1, "n[01-02] gpu:a100:2(IDX:0-1)", nodes="n[01-02]"),
        _scontrol(2, "n03 gpu:a100:3(IDX:1,3-4),nic:1(IDX:0)", state="COMPLETED", array="ArrayJobId=1 ArrayTaskId=4 "),
        _scontrol(3, "n04 gpu:1(IDX:0)", "n05 ", nodes="n[04-05]"),
        _scontrol(4, "m1 gpu:1g.10gb:1(IDX:3)"),
        _scontrol(5, "m2 shard:2(2/8,0/8)"),
        _scontrol(6, state="PENDING", start="Unknown", nodes="(null)"),
        _scontrol(7, "c1 ").replace(",gres/gpu=8", ""),
    ]
    jobs[2] = jobs[2].replace("GRES=gpu:1(IDX", "GRES_IDX=gpu(IDX")
    text = "".join(job.replace("\n", " ").strip() + "\n" if one_line else job for job in jobs)
    report = _import(store, tmp_path, text, time_zone="Europe/Berlin")
    assert (report.format, report.kind, report.total.kept, report.total.refused) == ("scontrol show job", "jobs", 6, 0)
    began, ended = at(2026, 5, 4, 8), at(2026, 5, 4, 10)
    expected = [(job, node, None, began, None) for job, node in (*(("1", n) for n in ("n01", "n01", "n02", "n02")),
                *(("1_4", "n03"),) * 3, ("3", "n04"), ("4", "m1"), ("5", "m2"))]  # fmt: skip
    with_ends = [(*row[:4], ended if row[0] == "1_4" else None) for row in expected]
    assert sorted(map(str, (row[:5] for row in _jobs(store)))) == sorted(map(str, with_ends))
    assert store.sql("select sum(node_gpus) as gpus from jobs_now").to_pylist() == [{"gpus": 8}]
    assert store.sql("select distinct raw_id from jobs where job_id = '1_4'").to_pylist() == [{"raw_id": "2"}]
    assert any("8 GPUs of jobs are known by Slurm's index (IDX) only" in note for note in report.notes)
    assert {row[5:] for row in _jobs(store)} == {("scontrol", "alice")}
    again = _import(store, tmp_path, text.replace("RUNNING", "COMPLETED"), "later", time_zone="Europe/Berlin")
    assert again.total.kept == 5
    assert {row[4] for row in _jobs(store)} == {ended}


A_LINE = "Name=gpu File=/dev/nvidia[2-3]"
BOOTED_S = 1_777_880_000  # 2026-05-04 07:33


def _tag(store: Store, job: int, at_s: int, *, index: str = "0", gres: str = A_LINE, booted_s: int = BOOTED_S) -> None:
    """A tag of a job on n03, whose device files are numbered against PCI addresses: index 0 is GPUS[1]."""
    folder = store.root / "tags"
    folder.mkdir(exist_ok=True)
    (folder / f"{job}-{at_s}.tag").write_text(
        f"whorl-tag=1\nevent=begin\ntime={at_s}\nnode=n03\njob={job}\nuid=0\nslurm_gpus={index}\nbooted={booted_s}\n"
        f"gpu={GPUS[0]}:3\ngpu={GPUS[1]}:2\ngres={gres}\nend=1\n"
    )


def test_an_index_of_scontrol_is_the_gpu_that_tags_of_the_node_say(tmp_path: Path, store: Store) -> None:
    began_s = TEN_MS // 1000
    text = _scontrol(8, "n03 gpu:2(IDX:0-1)") + _scontrol(9, "n04 gpu:1(IDX:0)")
    _tag(store, 1, began_s - 3600)  # before the job: the node may have been opened since
    _tag(store, 2, began_s + 7200, booted_s=began_s + 3600)  # after a reboot
    _tag(store, 3, began_s + 60, gres="AutoDetect=nvml")  # nobody says how many GPUs Slurm has for the node
    _import(store, tmp_path, text, "before")
    assert [row[:3] for row in _jobs(store)] == [("8", "n03", None), ("8", "n03", None), ("9", "n04", None)]
    _tag(store, 4, began_s + 60)
    report = _import(store, tmp_path, f"{text}\n", "after")
    assert any(note.startswith("1 GPUs of jobs are known by Slurm's index") for note in report.notes)
    assert [row[:3] for row in _jobs(store)] == [("8", "n03", GPUS[0]), ("8", "n03", GPUS[1]), ("9", "n04", None)]


@pytest.mark.parametrize("by_driver", [True, False])
def test_a_job_that_accounting_tags_and_scontrol_tell_of_counts_once(
    by_driver: bool, tmp_path: Path, store: Store
) -> None:
    """It has two GPUs of four; scontrol names them where the user says that Slurm's indices are the driver's."""
    began_s = TEN_MS // 1000
    identities = {"gpu": GPUS, "uuid": GPUS, "node": ["n03"] * 2, "slot": [0, 1], "cluster": ["fleet"] * 2}
    store.append({"gpus": arrow_rows("gpus", identities)}, "gpus")
    _import(store, tmp_path, _scontrol(8, "n03 gpu:2(IDX:0-1)"), columns={"gpu": "index"} if by_driver else {})
    job_gpus = [("8", gpu) for gpu in GPUS]
    assert [(row[0], row[2]) for row in _jobs(store)] == (job_gpus if by_driver else [("8", None)] * 2)
    books = tmp_path / "sacct.txt"
    books.write_text(
        "JobIDRaw|JobID|Cluster|State|NodeList|Submit|Start|End|AllocTRES\n"
        f"8|8|fleet|COMPLETED|n03|{began_s}|{began_s}|{began_s + 600}|gres/gpu=2\n"
    )
    if not by_driver:
        _tag(store, 8, began_s + 1, index="0,1")
        import_jobs(store, JobSources(cluster="fleet", gpus_per_node=["2"]))
        assert [(row[0], row[2], row[5]) for row in _jobs(store)] == [(*row, "tag") for row in job_gpus]
    assert import_jobs(store, JobSources(file=books, cluster="fleet", gpus_per_node=["4"])).with_gpus == 1
    assert [(row[0], row[2], row[5]) for row in _jobs(store)] == [(*row, "sacct") for row in job_gpus]
