"""Job traces of every format: what is read, what is left out and said, and what is refused with a sentence."""

from __future__ import annotations

import csv
import gzip
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from whorl.analysis.replay.jobs import Piece, Trace, assign, job_type
from whorl.analysis.replay.published import class_of
from whorl.analysis.replay.traces import FORMATS, SECONDS_PER_ITERATION, TraceOptions, read_trace
from whorl.cli.replay import WORLD
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import SCHEDULERS, needs_schedulers

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT.parent / "shared" / "data"
PHILLY = DATA / "traces" / "sia-philly"

HEAD = "job_id,num_gpus,submit_time,duration,model\n"
SWF = "; Computer: a machine\n1 10 5 100 8 -1 -1 8 3600 -1 1 3 4 5 1 1 -1 -1\n"
SACCT_HEAD = "JobIDRaw|Submit|ElapsedRaw|AllocTRES|State|TimelimitRaw|User|Partition\n"
OPENB_HEAD = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
HELIOS_HEAD = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
TIRESIAS_HEAD = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
SHOCKWAVE_HEAD = "job,model,batch,mode,gpus,epochs,isolated_s,arrival_s\n"
POLLUX = "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\n"
MIRAGE_HEAD = "job,user,submit,start,end,limit_min,nodes\n"
PAI_HEAD = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
SHOCKWAVE = (
    "ResNet-18 (batch size 32)\tpython3 main.py %s\tcifar10\t--num_steps\t1\t475\t2\tgns\t1\t-1.000000\t1520.25\t12\n"
)


def philly(
    job: str = "a", *attempts: tuple[str | None, str | None], gpus: int = 2, submitted: str = "2017-10-07 01:11:39"
) -> dict[str, Any]:
    """A job of the log of Philly, with one attempt of a minute where none is given."""
    ran = attempts or (("2017-10-07 01:12:00", "2017-10-07 01:13:00"),)
    detail = [{"ip": "m47", "gpus": [f"gpu{n}" for n in range(gpus)]}]
    attempt_rows = [{"start_time": start, "end_time": end, "detail": detail} for start, end in ran]
    return {
        "status": "Pass", "vc": "vc1", "jobid": job, "attempts": attempt_rows, "submitted_time": submitted,
    }  # fmt: skip


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def sacct(elapsed: str = "60", tres: str = "cpu=1,gres/gpu=2", state: str = "COMPLETED", job: str = "7") -> str:
    return f"{job}|2026-01-01T00:00:10|{elapsed}|{tres}|{state}|30|ann|gpu\n"


def facts(trace: Trace) -> list[tuple[str, float, int, float, str]]:
    return [(job.name, job.submit_s, job.gpus, job.ideal_s, job.model) for job in trace.jobs]


def says(trace: Trace, *fragments: str, of: str = "") -> None:
    """Each is in a note, which begins with `of`."""
    for fragment in fragments:
        assert any(fragment in note and note.startswith(of) for note in trace.notes), (fragment, trace.notes)


def refusal(
    path: Path,
    format: str | None = None,  # noqa: A002
    *,
    regimes: Path | None = None,
    names_trace: bool = True,
) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path, format, TraceOptions(regimes=regimes))
    sentence = str(caught.value)
    assert str(path if names_trace else regimes) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.skipif(not PHILLY.is_dir(), reason=f"the published traces are not at {PHILLY}")
def test_the_published_traces_are_read_in_seconds() -> None:
    trace = read_trace(PHILLY / "workload-1.csv")
    assert (trace.name, len(trace.jobs)) == ("workload-1", 160)
    first = trace.jobs[0]
    assert (first.name, first.submit_s, first.gpus, first.model) == ("0", 98.0, 1, "vgg19")
    assert first.ideal_s == pytest.approx(1481 * 0.300610341)
    says(trace, "iterations")


def test_a_csv_with_times_since_1970_counts_from_its_first_job(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD + "0,1,1700000300,100,m\n1,2,1700000000,100,m\n"))
    assert [(job.name, job.submit_s) for job in trace.jobs] == [("1", 0.0), ("0", 300.0)]
    says(trace, "since 1970")
    late = read_trace(written(tmp_path, HEAD + "0,1,98,100,m\n"))
    assert late.jobs[0].submit_s == 98.0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("1,2,5,0,m", "line 3: duration is 0"),
        ("1,2,-5,4,m", "line 3: submit_time is -5"),
        ("1,0,5,4,m", "line 3: num_gpus is 0"),
        (
            "1,1,1700000000000,4,m",
            "job 1 has a time of 1.7e+12 s, which is over 300 years; check the unit of the times",
        ),
        ("1,1.5,5,4,m", "line 3: num_gpus is 1.5; it must be a whole number"),
        ("1,2,5,soon,m", "line 3: duration is 'soon', which is not a finite number"),
        ("1,2,5,nan,m", "line 3: duration is 'nan', which is not a finite number"),
        ("1,2,,4,m", "line 3: submit_time is '', which is not a time"),
        ("0,2,5,4,m", "line 3: job_id 0 occurs twice"),
        ("1,2,5", "line 3: 3 fields where 5 are expected; the file looks cut off"),
        ("1,99999999999999999999,5,4,m", "line 3: num_gpus is 99999999999999999999; no cluster"),
        ('1,2,5,4,"m\n2,2,5,4,m', "line 3: the row cannot be read: unexpected end of data; is a quote not closed?"),
        (f"1,2,5,4,{200_000 * 'm'}", "line 3: the row cannot be read: field larger"),
    ],
)
def test_a_bad_row_of_the_csv_is_named(tmp_path: Path, row: str, sentence: str) -> None:
    assert sentence in refusal(written(tmp_path, f"{HEAD}0,1,0,100,m\n{row}"))


def test_a_csv_of_another_program_is_the_same_csv(tmp_path: Path) -> None:
    """Another order of columns, further ones, quoted fields, a byte order mark, other ends of lines, delimiters."""
    path = tmp_path / "t.csv"
    text = '\ufeffmodel,duration,"job_id",room,submit_time,num_gpus,user\r\n"a ""b"", c",100,j 1,x,0,2.0,Zoë\r\n'
    path.write_bytes((text + "m\u2028n,7,j 2,,1.5,1,\r\n").encode())
    trace = read_trace(path)
    assert facts(trace) == [("j 1", 0.0, 2, 100.0, 'a "b", c'), ("j 2", 1.5, 1, 7.0, "m\u2028n")]
    says(trace, "columns not used: room")
    plain = HEAD + "0,1,0,9,m\n"
    for delimiter in ";\t":
        delimited = written(tmp_path, plain.replace(",", delimiter))
        assert read_trace(delimited).jobs == read_trace(written(tmp_path, plain, "plain.csv")).jobs


def test_jobs_out_of_order_are_sorted_ties_in_the_files_order(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD + "a,1,9,1,m\nb,1,3,1,m\nc,1,9,1,m\nd,1,3,1,m\n"))
    assert [job.name for job in trace.jobs] == ["b", "d", "a", "c"]
    says(trace, "sorted")


def test_swf_is_read_and_what_cannot_run_is_counted(tmp_path: Path) -> None:
    lines = [
        SWF,
        "2 20 5 -1 8 -1 -1 8 3600 -1 5 3 4 5 1 1 -1 -1\n",  # never ran
        "3 30 5 50 -1 -1 -1 9 -1 -1 1 -1 4 -1 1 1 1 10\n",  # asked for 9, held an unknown number
        "4 40 5 50 -1 -1 -1 -1 -1 -1 1 3 4 5 1 1 -1 -1\n",  # no processors at all
        "5 50 5 50 8 -1 -1 8 -1 -1 3 3 4 5 1 1 -1 -1\n",  # a part of a job
    ]
    trace = read_trace(written(tmp_path, "".join(lines), "x.swf"), reading=TraceOptions(processors_per_gpu=4))
    assert facts(trace) == [("1", 0, 2, 100, "5"), ("3", 20, 3, 50, "")]
    assert [job.limit_s for job in trace.jobs] == [3600, None]
    says(
        trace,
        "run time is zero",
        "processors is unknown",
        "parts of jobs",
        "4 processors",
        "1 job waited for an earlier",
    )


def test_swf_of_the_archive_has_headers_and_gaps_of_every_kind(tmp_path: Path) -> None:
    unknown = " ".join(["-1"] * 18)
    text = f"; UnixStartTime: 843436800\r\n;no space\n\n{unknown}\n{unknown}\n"
    text += "-1\t0 0 60.5 2 55.3 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1\n -1 3 0 5 1 " + "-1 " * 13 + "\n"
    trace = read_trace(written(tmp_path, text, "x.swf"))
    assert [(job.name, job.submit_s, job.ideal_s) for job in trace.jobs] == [("line 6", 0, 60.5), ("line 7", 3, 5)]
    says(trace, "2 jobs left out")
    sentence = refusal(written(tmp_path, f"{unknown}\n{unknown}\n", "y.swf"))
    assert "has no job that can be replayed" in sentence
    assert "2 jobs left out" in sentence
    assert "job 1 occurs twice" in refusal(written(tmp_path, SWF + SWF, "z.swf"))
    assert "line 3: 4 fields where 18 are expected" in refusal(written(tmp_path, SWF + "2 20 5 100", "torn.swf"))


def test_sacct_is_read_whatever_its_columns(tmp_path: Path) -> None:
    """The same jobs in two spellings: raw seconds and minutes, and clock times with limits as Slurm prints them."""
    raw = read_trace(written(tmp_path, SACCT_HEAD + sacct("93784"), "raw.txt")).jobs
    text = "Partition|End|Start|User|Timelimit|ReqTRES|State|Elapsed|Submit|JobID\n"
    text += "gpu|2026-01-02T02:13:04|2026-01-01T00:10:00|ann|00:30:00|billing=4,gres/gpu:v100=1,gres/gpu:a100=1|"
    text += "CANCELLED by 12|1-02:03:04|2026-01-01T00:00:10|7\n"
    spelled = read_trace(written(tmp_path, text, "spelled.txt")).jobs
    assert raw == spelled
    job = raw[0]
    assert (job.name, job.gpus, job.ideal_s, job.limit_s, job.model) == ("7", 2, 93784, 1800, "gpu")


def test_sacct_is_read_however_its_columns_are_parted(tmp_path: Path) -> None:
    text = SACCT_HEAD + sacct(tres="gres/gpu=2")
    rows = [line.split("|") for line in text.splitlines()]
    rows.insert(1, ["-" * 20] * len(rows[0]))
    aligned = "".join("".join(f"{cell:>20} " for cell in row) + "\n" for row in rows)
    (job,) = read_trace(written(tmp_path, text, "acct.txt")).jobs
    for other in (aligned, text.replace("|", "\t"), text.replace("|", ",")):
        assert read_trace(written(tmp_path, other, "other.txt")).jobs == (job,)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=4,gres/gpu:v100=4,gres/gpu=4,mem=1G", 4),
        ("gres/gpu:a100=1,gres/gpu:v100=2", 3),
        ("gres/gpu:a100_3g.20gb=2,cpu=1", 2),
        ("gpu:a100:2(IDX:0-1)", 2),
        ("gpu:1080:3", 3),
        ("gres:gpu:4", 4),
        ("gpu:2", 2),
        ("gres/gpumem=4096,gres/gpuutil=30,gres/gpu=1", 1),
    ],
)
def test_sacct_spells_gpus_in_many_ways(tmp_path: Path, tres: str, gpus: int) -> None:
    (job,) = read_trace(written(tmp_path, SACCT_HEAD + sacct(tres=tres), "acct.txt")).jobs
    assert job.gpus == gpus
    text = (SACCT_HEAD + sacct(tres=tres)).replace("AllocTRES", "AllocGRES")
    assert read_trace(written(tmp_path, text, "old.txt")).jobs[0].gpus == gpus


def test_sacct_counts_every_time_a_job_ran_once(tmp_path: Path) -> None:
    """A requeued job held GPUs before as well; lines of overlapping exports are one; components stand alone."""
    text = SACCT_HEAD + sacct(state="REQUEUED", elapsed="20") + sacct(elapsed="50") + sacct(elapsed="50")
    trace = read_trace(written(tmp_path, text + sacct(state="REQUEUED", elapsed="0", job="9"), "acct.txt"))
    assert [(job.name, job.ideal_s) for job in trace.jobs] == [("7", 20), ("7#2", 50)]
    says(trace, "1 job left out: the same line")
    text = (SACCT_HEAD + sacct(job="7+0") + sacct(job="7+1")).replace("JobIDRaw", "JobID")
    trace = read_trace(written(tmp_path, text, "het.txt"))
    assert [job.name for job in trace.jobs] == ["7+0", "7+1"]
    assert any(note == "components of heterogeneous jobs count as jobs of their own: 2 jobs" for note in trace.notes)


def test_instances_of_mig_count_as_gpus_and_are_told(tmp_path: Path) -> None:
    rows = [sacct(tres="cpu=1,gres/gpu:a100_1g.10gb=2,gres/gpu=2"), sacct(tres="gres/gpu:a100=1,gres/gpu=1", job="8")]
    trace = read_trace(written(tmp_path, SACCT_HEAD + "".join(rows)))
    assert [job.gpus for job in trace.jobs] == [2, 1]
    says(trace, "1 job held MIG instances, and each of these counts as a whole GPU")


def test_sacct_without_states_goes_by_the_end(tmp_path: Path) -> None:
    text = "JobID|Submit|End|ElapsedRaw|AllocTRES\n1|2026-01-01T00:00:00|Unknown|5|gres/gpu=1\n"
    text += "2|2026-01-01T00:00:00|2026-01-01T00:00:09|9|gres/gpu=1\n"
    trace = read_trace(written(tmp_path, text, "acct.txt"))
    assert [job.name for job in trace.jobs] == ["2"]
    trace = read_trace(written(tmp_path, text.replace("End", "Bend"), "acct.txt"))
    assert [job.name for job in trace.jobs] == ["1", "2"]
    says(trace, "jobs that were still running count as ended")


def test_sacct_leaves_out_and_counts_what_cannot_be_replayed(tmp_path: Path) -> None:
    text = SACCT_HEAD + sacct() + sacct(job="7.batch") + sacct(job="7.0") + sacct(job="7.extern")
    text += sacct(job="8", state="PENDING") + sacct(job="9", state="RUNNING")
    text += sacct(job="10", elapsed="0", state="CANCELLED by 3") + sacct(job="11", tres="cpu=4")
    text += sacct(job="12", state="FAILED", elapsed="5") + sacct(job="7", elapsed="9")
    trace = read_trace(written(tmp_path, text, "acct.txt"))
    assert [(job.name, job.ideal_s) for job in trace.jobs] == [("7", 60), ("12", 5), ("7#2", 9)]
    says(trace, "had not started", "still running", "never ran", "no GPU", "requeued", of="1 job ")


def test_sacct_counts_from_when_a_job_was_eligible(tmp_path: Path) -> None:
    text = "JobID|Submit|Eligible|ElapsedRaw|ReqTRES\n"
    text += "1|2026-01-01T00:00:00|2026-01-01T00:00:00|5|gres/gpu=1\n"
    text += "2|2026-01-01T00:00:00|2026-01-01T01:00:00|5|gres/gpu=1\n"
    text += "3|2026-01-01T00:00:30|Unknown|5|gres/gpu=1\n"
    trace = read_trace(written(tmp_path, text, "acct.txt"))
    assert [(job.name, job.submit_s) for job in trace.jobs] == [("1", 0), ("3", 30), ("2", 3600)]


def test_a_job_number_of_pbs_is_no_step(tmp_path: Path) -> None:
    text = SACCT_HEAD + sacct(job="123.server") + sacct(job="124.pbs01.site.org")
    assert [job.name for job in read_trace(written(tmp_path, text, "acct.txt")).jobs] == [
        "123.server",
        "124.pbs01.site.org",
    ]


def test_a_bad_time_of_sacct_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, SACCT_HEAD + sacct().replace("2026-01-01T00:00:10", "yesterday"), "acct.txt")
    assert "line 2: submit is 'yesterday', which is not a time such as" in refusal(path)
    path = written(tmp_path, SACCT_HEAD + sacct(elapsed="x"), "acct.txt")
    assert "line 2: elapsedraw is 'x'" in refusal(path)
    path = written(tmp_path, "JobID|Submit|AllocTRES\n1|2026-01-01T00:00:10|gres/gpu=1\n", "acct.txt")
    assert "has none of ElapsedRaw, Elapsed, or Start with End" in refusal(path)


def test_a_name_with_the_delimiter_of_sacct_costs_its_job_alone(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SACCT_HEAD + sacct() + "8|a|" + sacct(job="9"), "acct.txt"))
    assert [job.name for job in trace.jobs] == ["7"]
    says(trace, "1 job left out: it has 10 fields, but the header names 8")


def test_openb_is_read_and_what_cannot_run_is_counted(tmp_path: Path) -> None:
    rows = [
        "p1,1,1,2,1000,,LS,Succeeded,100,400,130",
        "p2,1,1,1,460,V100M16,BE,Failed,200,500.5,210",
        "p3,1,1,0,0,,LS,Running,100,400,130",
        "p4,1,1,1,1000,,LS,Pending,100,,",
        "p5,1,1,1,1000,,LS,Running,100,,130",
        "p6,1,1,1,1000,,LS,Failed,100,120,130",
    ]
    trace = read_trace(written(tmp_path, OPENB_HEAD + "\n".join(rows)))
    assert facts(trace) == [("p1", 0, 2, 270, "LS"), ("p2", 100, 1, 290.5, "BE")]
    says(trace, "no GPU", "never scheduled", "had not ended", "ended before they ran", "share of a GPU", of="1 job ")


def test_helios_is_read_and_what_cannot_run_is_counted(tmp_path: Path) -> None:
    rows = [
        "1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:05,2020-06-10 04:55:09,36844,4",
        "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0",
        "1425513,uzqls,vcpDC,0,8,1,COMPLETED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:29,1,0",
        "1425514,uzqls,vcpDC,2,8,1,CANCELLED,2020-06-09 18:41:30,None,2020-06-09 18:41:31,0,1",
    ]
    trace = read_trace(written(tmp_path, HELIOS_HEAD + "\n".join(rows)))
    assert facts(trace) == [("1425511", 0, 1, 36844, "vcJkd"), ("1425512", 26, 4, 249, "vchbv")]
    says(trace, "had no GPU", "never ran", of="1 job ")
    text = (HELIOS_HEAD + rows[0]).replace("18:41:01", "yesterday")
    assert "line 2: submit_time is '2020-06-09 yesterday'" in refusal(written(tmp_path, text))


def test_times_in_milliseconds_are_not_taken_for_seconds(tmp_path: Path) -> None:
    rows = [f"{n},u,v,1,1,1,COMPLETED,17480000{n}0000,17480000{n}1000,17480000{n}9000,8,1\n" for n in (1, 2)]
    assert "over 300 years; check the unit of the times" in refusal(written(tmp_path, HELIOS_HEAD + "".join(rows)))
    assert refusal(written(tmp_path, "[]")).endswith("has no job that can be replayed: it holds none")


def test_the_model_of_a_job_of_acme_is_its_type(tmp_path: Path) -> None:
    head = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    row = "57,u59,1,8,128,SFT,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,x,117,32,936.0\n"
    (job,) = read_trace(written(tmp_path, head + row)).jobs
    assert (job.gpus, job.ideal_s, job.model) == (8, 117, "SFT")


def test_a_duration_that_holds_the_wait_in_the_queue_is_not_taken_for_the_run_time(tmp_path: Path) -> None:
    kalos = "job_id,user,node_num,gpu_num,type,state,submit_time,start_time,end_time,fail_time,duration,queue,gpu_time"
    day = "2023-05-17 11:"
    rows = [
        f"a,u,8,64,Other,FAILED,{day}00:58+00:00,{day}01:08+00:00,{day}01:16+00:00,,18,10.0,1152.0",
        f"b,u,8,64,Other,CANCELLED,{day}28:42+00:00,{day}28:54+00:00,{day}30:04+00:00,,82,12.0,5248.0",
        f"c,u,8,64,Other,CANCELLED,{day}28:42+00:00,,{day}30:04+00:00,,82,,5248.0",
        f"d,u,8,64,Other,COMPLETED,{day}28:42+00:00,{day}28:54+00:00,{day}30:04+00:00,,70,12.0,4480.0",
    ]
    trace = read_trace(written(tmp_path, "\n".join([kalos, *rows])))
    assert [(j.name, j.ideal_s) for j in trace.jobs] == [("a", 8), ("b", 70), ("d", 70)]
    says(trace, "1 job left out: they never ran")
    says(trace, "duration of 2 jobs is from submit_time to end_time")


def test_durations_of_tiresias_are_seconds_also_of_models_that_pal_counts_in_iterations(tmp_path: Path) -> None:
    rows = ["0,1,0,606,vgg19,164,30", "1,8,30,133,resnet50,147,23", "2,0,53,157,vgg11,127,26", "3,1,79,5,vgg16,0,20"]
    trace = read_trace(written(tmp_path, TIRESIAS_HEAD + "\n".join(rows)))
    assert facts(trace) == [("0", 0, 1, 164, "vgg19"), ("1", 30, 8, 147, "resnet50")]
    for reason in ("had no GPU", "never ran"):
        assert f"1 job left out: they {reason}" in trace.notes


@pytest.mark.parametrize("head", ["", PAI_HEAD])
def test_tasks_of_pai_that_belong_to_one_job_run_at_once(tmp_path: Path, head: str) -> None:
    rows = [
        "a,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC",
        "b,ps,2.0,Terminated,1739300.0,1739900.0,600.0,29.3,,",
        "b,chief,1.0,Terminated,1739305.0,1739885.0,600.0,29.3,100.0,V100",
        "b,worker,3.0,Failed,1739310.0,1739880.0,600.0,29.3,200.0,V100",
        "c,ps,1.0,Terminated,1739300.0,1739900.0,600.0,29.3,,",
        "d,tensorflow,1.0,Running,1739162.0,,600.0,29.3,100.0,T4",
        "e,tensorflow,1.0,Failed,1739162.0,1739162.0,600.0,29.3,100.0,T4",
    ]
    trace = read_trace(written(tmp_path, head + "\n".join(rows)))
    assert facts(trace) == [("a", 0, 1, 38, "tensorflow"), ("b", 143, 7, 580, "worker")]
    says(trace, "had no GPU", "not ended", "never ran", "1 task asked for a share", "arrives when its first task")
    line = 2 if head else 1
    assert f"line {line}: plan_gpu is 'x'" in refusal(written(tmp_path, head + rows[0].replace("50.0", "x")))


def regimes_file(folder: Path, regimes: object, name: str = "r.json") -> Path:
    return written(folder, json.dumps({"note": "", "regimes": regimes}), name)


def test_regimes_that_take_another_time_than_the_trace_says_are_told_of(tmp_path: Path) -> None:
    path = written(tmp_path, "job,model,batch,gpus,epochs,isolated_s,arrival_s\na,m,8,1,4,20,0\nb,m,8,1,4,20,0\n")
    regimes = regimes_file(tmp_path, {"a": [[4, 8, 5]], "b": [[4, 8, 15]]})
    trace = read_trace(path, reading=TraceOptions(regimes=regimes))
    assert [job.ideal_s for job in trace.jobs] == [20, 60]
    assert trace.notes == ("1 job: isolated_s is over 1 % off the sum of its regimes, which counts",)


@needs_schedulers
def test_the_trace_of_shockwave_is_read_as_it_is_and_raw_and_runs_by_its_regimes(tmp_path: Path) -> None:
    path, regimes = (SCHEDULERS / "shockwave" / name for name in ("jobs_32gpus.csv", "regimes_32gpus.json"))
    alone = read_trace(path)
    trace = read_trace(path, reading=TraceOptions(regimes=regimes))
    assert len(trace.jobs) == 120
    assert trace.notes == ()
    assert sum(job.gpus * job.ideal_s for job in trace.jobs) / 32 == pytest.approx(19_869, abs=1)
    assert trace.jobs[-1].submit_s == pytest.approx(5_011, abs=1)
    assert [job.ideal_s for job in alone.jobs] == pytest.approx([job.ideal_s for job in trace.jobs], rel=1e-6)
    first, second = trace.jobs[:2]
    assert [(piece.epochs, piece.batch) for piece in first.pieces] == [(11, 10), (10, 20), (1, 40), (1, 10)]
    assert (second.model, job_type(second.model, second.batch)) == ("ResNet-18", "ResNet-18 (batch size 32)")
    assert [(piece.epochs, piece.batch) for piece in alone.jobs[1].pieces] == [(92, 32)]
    rows = csv.DictReader(path.read_text().splitlines())
    raw = "".join(
        f"{row['model']} (batch size {row['batch']})\tpython3\tdata\t-n\t1\t{row['steps']}\t{row['gpus']}\t"
        f"{row['mode']}\t1\t-1.0\t{row['trace_duration_s']}\t{row['arrival_s']}\n"
        for row in rows
    )
    assert read_trace(written(tmp_path, raw), reading=TraceOptions(regimes=regimes)).jobs == trace.jobs


def test_a_raw_trace_of_gavel_needs_its_regimes(tmp_path: Path) -> None:
    path = written(tmp_path, SHOCKWAVE + SHOCKWAVE.replace("\t2\tgns", "\t0\tgns"))
    assert "does not say how long its jobs run" in refusal(path)
    regimes = regimes_file(tmp_path, {"0": [[2, 32, 50.5], [3, 64, 20]], "1": [[1, 32, 5]]})
    trace = read_trace(path, reading=TraceOptions(regimes=regimes))
    (job,) = trace.jobs
    assert (job.name, job.gpus, job.ideal_s, job.model) == ("0", 2, 161, "ResNet-18")
    assert job.pieces == (Piece(101, epochs=2, batch=32), Piece(60, epochs=3, batch=64))
    says(trace, "1 job left out: they had no GPU")
    gavel = "ResNet-50 (batch size 64)\tpython3 main.py\t-n\t1\t307\t1\t1\t-1.0\t55.5\n"
    assert "9 fields a job, which does not say how long" in refusal(written(tmp_path, gavel), regimes=regimes)
    torn = written(tmp_path, SHOCKWAVE + gavel)
    assert "line 2: 9 fields where 12 are expected" in refusal(torn, regimes=regimes)


@pytest.mark.parametrize(
    ("regimes", "sentence"),
    [
        ({}, "has no regimes of job a of"),
        ({"a": [[4, 8, 5]], "b": [[4, 8, 5]]}, "has regimes of job b, and"),
        ({"a": [[4, 8, -5]]}, "job a: regime 1 is [4, 8, -5]; it must be three numbers above 0"),
        ({"a": [[3, 8, 5], [1, 8]]}, "regime 2 is [1, 8]"),
        ({"a": [[4, "8", 5]]}, 'regime 1 is [4, "8", 5]'),
        ({"a": []}, "job a: it has no list of regimes"),
        ({"a": [[5, 8, 5]]}, "line 2: the epochs of job a: 4 here, 5 in"),
        ({"a": [[2, 16, 5], [2, 8, 5]]}, "line 2: the batch of job a: 8 here, 16 in"),
        ([[4, 8, 5]], "holds no regimes by job"),
    ],
)
def test_regimes_of_another_trace_or_damaged_ones_are_refused(tmp_path: Path, regimes: object, sentence: str) -> None:
    path = written(tmp_path, SHOCKWAVE_HEAD + "a,LM,8,gns,1,4,20.0,0\n")
    assert sentence in refusal(path, regimes=regimes_file(tmp_path, regimes), names_trace=False)


def test_regimes_are_for_traces_that_have_some(tmp_path: Path) -> None:
    regimes = regimes_file(tmp_path, {"0": [[1, 1, 9]]})
    assert "--regimes is for traces of shockwave, gavel, pollux" in refusal(
        written(tmp_path, HEAD + "0,1,0,9,m\n"), regimes=regimes
    )
    assert "r2.json is no JSON" in refusal(
        written(tmp_path, SHOCKWAVE_HEAD + "a,LM,8,gns,1,4,20.0,0\n"),
        regimes=written(tmp_path, "{", "r2.json"), names_trace=False,
    )  # fmt: skip


def test_a_trace_of_pollux_needs_to_be_told_how_long_jobs_run(tmp_path: Path) -> None:
    path = written(tmp_path, POLLUX)
    assert "nor for how many steps" in refusal(path)
    regimes = regimes_file(tmp_path, {"cifar10-0": [[10, 2048, 7.5]]})
    (job,) = read_trace(path, reading=TraceOptions(regimes=regimes)).jobs
    assert (job.name, job.submit_s, job.gpus, job.ideal_s, job.model) == ("cifar10-0", 107, 6, 75, "cifar10")


def test_jobs_of_a_slurm_log_of_nodes_hold_whole_nodes(tmp_path: Path) -> None:
    rows = (
        "1,u,2022-11-01T00:00:00,2022-11-01T00:10:00,2022-11-01T01:10:00,120,2\n"
        "2,u,2022-11-01T00:05:00,2022-11-01T01:10:00,2022-11-01T01:10:30,10,1\n"
        "3,u,2022-11-01T00:05:00,Unknown,2022-11-01T01:10:30,10,1\n"
        "4,u,2022-11-01T00:05:00,2022-11-01T01:10:00,2022-11-01T01:10:00,10,1\n"
    )
    path = written(tmp_path, MIRAGE_HEAD + rows)
    for gpus_per_node in (1, 3):
        trace = read_trace(path, reading=TraceOptions(gpus_per_node=gpus_per_node))
        assert [(j.name, j.submit_s, j.gpus, j.ideal_s, j.limit_s) for j in trace.jobs] == [
            ("1", 0, 2 * gpus_per_node, 3600, 7200),
            ("2", 300, gpus_per_node, 30, 600),
        ]
    says(trace, "1 job left out: they never started", "1 job left out: they never ran", "of 3 GPUs each")


def test_widths_and_times_of_accounts_are_checked_too(tmp_path: Path) -> None:
    row = "1,u,2022-11-01T00:00:00,2022-11-01T00:10:00,2022-11-01T01:10:00,0,{}\n"
    assert "line 2: GPUs is 2.5; it must be a whole number" in refusal(written(tmp_path, MIRAGE_HEAD + row.format(2.5)))
    assert "line 2: submit_time is -5; times count" in refusal(written(tmp_path, TIRESIAS_HEAD + "0,1,-5,6,m,16,3\n"))
    assert "batch is 0; it must be above 0" in refusal(written(tmp_path, SHOCKWAVE_HEAD + "a,LM,0,gns,1,4,3,0"))
    assert read_trace(written(tmp_path, MIRAGE_HEAD + row.format(2))).jobs[0].limit_s is None


def test_all_attempts_of_a_philly_job_are_one_run_on_the_gpus_of_the_last(tmp_path: Path) -> None:
    ran = ("2017-10-07 01:13:30", "2017-10-07 02:13:30")
    log_jobs = [
        philly("a", ("2017-10-07 01:12:09", "2017-10-07 01:13:23"), ran, gpus=8),
        philly("b", submitted="2017-10-07 01:11:00"),
        philly("c", (ran[0], None)),
        philly("d"),
        philly("e", (None, ran[1]), ran),
        philly("f", ran, (None, ran[1])),
    ]
    log_jobs[3]["attempts"] = []
    log_jobs[5]["attempts"][1]["detail"] = []  # killed while it waited
    trace = read_trace(written(tmp_path, json.dumps(log_jobs, indent=1), "cluster_job_log"))
    assert facts(trace) == [
        ("b", 0, 2, 60, "vc1"),
        ("a", 39, 8, 3674, "vc1"),
        ("e", 39, 2, 3600, "vc1"),
        ("f", 39, 2, 3600, "vc1"),
    ]
    says(trace, "1 job left out: they never ran", "1 job left out: they had not ended", "3 jobs ran in several")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"jobid": "a"', "is no JSON"),
        ('[{"jobid": "a"}]', "job 1 of the list: it is not as the job log of Philly has it (KeyError: 'attempts')"),
        (json.dumps([{"jobid": "a", "attempts": [], "submitted_time": "soon"}]), "job 1 of the list"),
        ("[1]", "job 1 of the list"),
        ("1", "is JSON without a list of jobs"),
    ],
)
def test_what_is_no_job_log_of_philly_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(written(tmp_path, text), "philly")


def test_submit_times_may_be_dates(tmp_path: Path) -> None:
    rows = "0,1,2026-03-01 10:00:00,9,m\n1,1,2026-03-01T10:01:40Z,9,m\n2,1,2026-03-01T12:00:05.7+0200,9,m\n"
    assert [job.submit_s for job in read_trace(written(tmp_path, HEAD + rows)).jobs] == [0, 5, 100]
    assert "line 3: submit_time is 'later'" in refusal(
        written(tmp_path, HEAD + rows.replace("2026-03-01T10:01:40Z", "later"))
    )
    assert "line 3: submit_time is ''" in refusal(written(tmp_path, HEAD + rows.replace("2026-03-01T10:01:40Z", "")))


EXAMPLES = {
    "csv": """\
job_id,num_gpus,submit_time,duration,model
a,1,2026-03-01 09:58:20,600,gemm-fp32
b,4,2026-03-01 10:00:00,1200,power-mix
""",
    "swf": """\
; Computer: a machine
1 10 5 100 8 -1 -1 8 3600 -1 1 3 4 5 1 1 -1 -1
2 20 5 50 4 -1 -1 4 600 -1 1 3 4 5 1 1 -1 -1
""",
    "sacct": """\
JobIDRaw|Submit|ElapsedRaw|AllocTRES|State|TimelimitRaw|User|Partition
7|2026-01-01T00:00:10|60|cpu=1,gres/gpu=2|COMPLETED|30|ann|gpu
8|2026-01-01T00:00:20|90|cpu=1,gres/gpu:a100=1|TIMEOUT|1|ann|gpu
""",
    "openb": """\
name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time
p1,1,1000,LS,100,400,130
p2,1,460,BE,200,500,210
""",
    "helios": """\
job_id,user,vc,gpu_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vc1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:05,2020-06-09 19:41:05,3600,4
2,u1,vc1,4,FAILED,2020-06-09 18:42:00,2020-06-09 18:42:00,2020-06-09 18:46:09,249,0
""",
    "tiresias": """\
job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,resnet50,147,23
""",
    "pai": """\
b,chief,1.0,Terminated,1739305.0,1739885.0,600.0,29.3,100.0,V100
b,worker,3.0,Failed,1739310.0,1739880.0,600.0,29.3,200.0,V100
c,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC
""",
    "shockwave": """\
job,model,batch,mode,gpus,steps,epochs,samples_per_epoch,trace_duration_s,isolated_s,arrival_s
0,LM,10,gns,1,134583,23,59675,1418,1224.7974,0.0
1,ResNet-18,32,accordion,1,143450,92,50000,3338,2996.0317,55.0
""",
    "gavel": """\
ResNet-18 (batch size 32)\tpython3 main.py %s\tcifar10\t--num_steps\t1\t475\t2\tgns\t1\t-1.0\t1520.25\t0
LM (batch size 10)\tpython3 main.py %s\twikitext2\t--steps\t1\t900\t1\tstatic\t1\t-1.0\t700.0\t12
""",
    "philly": """\
[{"vc": "vc1", "jobid": "a", "submitted_time": "2017-10-07 01:11:39", "attempts":
  [{"start_time": "2017-10-07 01:12:00", "end_time": "2017-10-07 01:13:00",
    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]}]}]
""",
    "pollux": """\
name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
deepspeech2-1,110,deepspeech2,6,320
""",
    "mirage": """\
job,user,submit,start,end,limit_min,nodes
478729,0,2022-10-05T11:52:48,2022-11-01T15:34:14,2022-11-03T15:34:15,2880,2
478730,0,2022-10-05T11:52:48,2022-11-05T04:12:18,2022-11-07T03:12:22,2880,2
""",
}


def test_the_page_shows_every_format_and_each_is_told_by_its_content_and_can_be_named(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "replay.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|$", page, re.M)
    assert rows == [(row.name, row.summary) for row in FORMATS]
    (option,) = (option for option in WORLD if option.key == "trace-format")
    assert re.findall(r"\w+", str(option.help).split(".")[0]) == [*(name for name, _ in rows[:-1]), "or", rows[-1][0]]
    assert set(EXAMPLES) == {row.name for row in FORMATS}
    assert textwrap.indent(EXAMPLES["csv"], "    ") in page
    regimes = {"gavel": {"0": [[1, 32, 1]], "1": [[1, 10, 1]]}}
    regimes["pollux"] = {"cifar10-0": [[1, 1, 1]], "deepspeech2-1": [[1, 1, 1]]}
    for name, example in EXAMPLES.items():
        path = written(tmp_path, example, "anything.dat")
        reading = TraceOptions(regimes=regimes_file(tmp_path, regimes[name]) if name in regimes else None)
        assert read_trace(path, reading=reading) == read_trace(path, name, reading)
    path = written(tmp_path, HEAD + "0,1,0,9,m\n")
    assert "has no column" in refusal(path, format="openb")
    with pytest.raises(InputError, match="no trace format is named 'xml'; there are csv, swf, sacct, openb, helios"):
        read_trace(path, "xml")


def test_a_compressed_trace_is_the_same_trace(tmp_path: Path) -> None:
    text = HEAD + "0,1,0,9,m\n"
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_trace(packed) == read_trace(written(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n1,2\n", "is no known trace format"),
        (b"\xff\xfe\x00", "is not UTF-8 text: byte 0"),
        (HEAD.encode(), "has no rows"),
        (b"job_id,job_id,num_gpus,submit_time,duration\n1,1,1,1,1\n", "the column 'job_id' twice"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    assert sentence in refusal(path)


def test_models_find_their_workloads(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD + "0,1,0,9,ResNet50\n1,1,0,9,bert\n2,1,0,9,other\n"))
    (assigned,) = assign([trace], ["resnet", "bert", "sgemm"], {"other": "none"})
    assert [job.workload for job in assigned.jobs] == ["resnet", "bert", ""]
    (assigned,) = assign([trace], ["resnet", "bert"], {"bert": "resnet", "*": "bert"})
    assert [job.workload for job in assigned.jobs] == ["bert", "resnet", "bert"]
    (assigned,) = assign([trace], ["sgemm"])
    assert {job.workload for job in assigned.jobs} == {"sgemm"}
    (assigned,) = assign([trace], [])
    assert {job.workload for job in assigned.jobs} == {""}
    with pytest.raises(InputError, match="no measured workload matches ResNet50, other"):
        assign([trace], ["resnet18", "resnet-50", "bert"])
    with pytest.raises(InputError, match="no job has the model 'gpt'; there is ResNet50, bert, other"):
        assign([trace], ["bert"], {"gpt": "bert"})
    with pytest.raises(InputError, match="no workload is called 'x'; there is bert, or none"):
        assign([trace], ["bert"], {"bert": "x"})


def test_models_of_the_published_study_have_its_workloads(tmp_path: Path) -> None:
    """Where none of their own was measured; what the study takes for a class is what its profiles say."""
    rows = "".join(f"{number},1,0,9,{model}\n" for number, model in enumerate(SECONDS_PER_ITERATION))
    trace = read_trace(written(tmp_path, HEAD + rows))
    measured = ["bert", "pagerank", "resnet", "sgemm"]
    (assigned,) = assign([trace], measured)
    files = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
    for job in assigned.jobs:
        assert job.workload == files[class_of(job.model)], job.model
    (assigned,) = assign([trace], [*measured, "dcgan", "vgg19-train"], {"GPT2": "sgemm"})
    assert {job.model: job.workload for job in assigned.jobs}["DCGAN"] == "dcgan"
    assert {job.model: job.workload for job in assigned.jobs}["GPT2"] == "sgemm"
    with pytest.raises(InputError, match="no measured workload matches PointNet, resnet50"):
        assign([trace], ["bert", "sgemm"])
    (assigned,) = assign([trace], ["sgemm"])
    assert {job.workload for job in assigned.jobs} == {"sgemm"}
    assert not any("stands for the class" in note for note in assigned.notes)
