"""Tags of prologs and epilogs: the script never fails, and what it notes becomes allocations of GPUs by UUID."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.jobs.accounting import mapping
from whorl.jobs.accounting import tags as tagging
from whorl.jobs.accounting.importing import ImportReport, JobSources, import_jobs
from whorl.store import Store
from whorl.store.importing import tags
from whorl.tests.jobs.accounts import T0, job, know_gpus, now, saved, utc

A, B, C, D = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "abcd")
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A node with two GPUs whose device files are in another order than their PCI addresses."""
    folder = tmp_path / "proc"
    for place, (uuid, minor) in enumerate([(A, 1), (B, 0)]):
        about = folder / "driver" / "nvidia" / "gpus" / f"0000:0{place}:00.0" / "information"
        about.parent.mkdir(parents=True)
        about.write_text(f"Model: \t\t NVIDIA\nGPU UUID: \t {uuid}\nBus Location: \t 0\nDevice Minor: \t {minor}\n")
    (folder / "stat").write_text(f"cpu 1 2 3\nbtime {T0 - 1000}\n")
    return folder


def script(event: str, folder: Path, proc: Path, *, shell: str = "sh", **env: str) -> subprocess.CompletedProcess[str]:
    line = [shell, *(["sh"] if shell == "busybox" else []), "-s", "--", event, str(folder)]
    environment = {"PATH": os.environ["PATH"], "WHORL_PROC": str(proc), "SLURMD_NODENAME": "n01"}
    return subprocess.run(
        line, input=tagging.script(), env=environment | env, capture_output=True, text=True, check=False
    )


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_UID": "1001", "SLURM_JOB_USER": "alice"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_notes_a_job_in_one_file(shell: str, proc: Path, tmp_path: Path) -> None:
    done = script("begin", tmp_path, proc, shell=shell, **JOB, SLURM_CLUSTER_NAME="whorl")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    spool = tags.read([tmp_path])
    (event,) = spool.events
    assert (event.kind, event.node, event.job, event.gpus) == ("begin", "n01", "7", ((A, "1"), (B, "0")))
    assert event.text.items() >= {"user": "alice", "uid": "1001", "cluster": "whorl"}.items()
    assert abs(event.at_s - time.time()) < 60
    assert event.booted_s == T0 - 1000
    assert [path for path in tmp_path.iterdir() if path.is_file()] == spool.files  # and nothing half written


def test_the_script_exits_0_whatever_happens(proc: Path, tmp_path: Path) -> None:
    done = script("begin", tmp_path / "nowhere", proc, **JOB)
    assert done.returncode == 0
    assert "no tag can be written into" in done.stderr
    assert script("began", tmp_path, proc, **JOB).returncode == 0
    (proc / "stat").unlink()
    os.mkfifo(proc / "stat")  # reading it never ends, as on a file system that hangs
    folder = tmp_path / "tags"
    folder.mkdir()
    late = script("begin", folder, proc, **JOB, WHORL_TAG_SECONDS="1")
    assert late.returncode == 0
    assert "no tag was written within 1 s" in late.stderr
    assert not tags.read([folder]).events


def planted(folder: Path, target: Path, pid: int) -> None:
    """Links under every name that the script of this process can choose within 20 s."""
    for at in range(int(time.time()) - 1, int(time.time()) + 20):
        (folder / f".n01-7-begin-{at}-{pid}").symlink_to(target)


def test_a_link_under_the_name_of_a_tag_is_not_followed(proc: Path, tmp_path: Path) -> None:
    folder, precious = tmp_path / "tags", tmp_path / "precious"
    folder.mkdir(mode=0o755)
    precious.write_text("secret\n")
    (tmp_path / "tag.sh").write_text(tagging.script())
    line = ["sh", "-c", 'read go; exec sh "$@"', "sh", str(tmp_path / "tag.sh"), "begin", str(folder)]
    env = {"PATH": os.environ["PATH"], "WHORL_PROC": str(proc), "SLURMD_NODENAME": "n01", **JOB}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=env, stdin=pipe, stderr=pipe, text=True) as process:
        planted(folder, precious, process.pid)
        _, complaint = process.communicate("go\n")
    assert (process.returncode, precious.read_text()) == (0, "secret\n")
    assert "no tag can be written" in complaint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize(("owner", "mode"), [(12345, 0o755), (0, 0o1777), (0, 0o775)])
def test_root_writes_only_where_nobody_else_may_and_the_owner_of_a_folder_for_himself(
    owner: int, mode: int, proc: Path
) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        os.chown(folder, owner, owner)
        folder.chmod(mode)
        done = script("begin", folder, proc, **JOB)
        assert (done.returncode, list(folder.iterdir())) == (0, [])
        assert "run this as the owner" in done.stderr
        os.chown(folder, 12345, 12345)
        line = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-s", "--", "begin", name]
        env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n01", **JOB}
        assert subprocess.run(line, input=tagging.script(), env=env, text=True, check=False).returncode == 0
        assert [path.stat().st_uid for path in folder.glob("*.tag")] == [12345]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@pytest.mark.parametrize("shell", SHELLS)
def test_root_writes_through_no_link_and_below_no_folder_of_others(shell: str, proc: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for folder in ("private", "nobody", "nobody/folder", "shared", "shared/folder"):
            (top / folder).mkdir(mode=0o755)
        os.chown(top / "nobody", 65534, 65534)
        (top / "shared").chmod(0o777)
        (top / "link").symlink_to(top / "private")
        (top / "nobody" / "link").symlink_to(top / "private")
        for folder in ("nobody/link", "link", "nobody/folder", "shared/folder", "nobody/../private"):
            done = script("begin", Path(f"{name}/{folder}"), proc, shell=shell, **JOB)
            assert (done.returncode, list(top.rglob("*-7-*"))) == (0, []), folder
            assert "run this as the owner" in done.stderr
        (top / "shared").chmod(0o1777)
        for folder in ("shared/folder", "private"):
            assert script("begin", top / folder, proc, shell=shell, **JOB).stderr == ""
            assert len(list((top / folder).glob("*.tag"))) == 1


def test_where_the_driver_has_not_read_a_gpu_nvidia_smi_is_asked(proc: Path, tmp_path: Path) -> None:
    for about in proc.rglob("information"):
        about.write_text("GPU UUID: \t GPU-????????-????\nDevice Minor: \t 0\n")
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    listed = f"GPU 0: NVIDIA H100 (UUID: {A})\n  MIG 1g.10gb Device 0: (UUID: MIG-1)\nGPU 1: NVIDIA H100 (UUID: {B})\n"
    smi.write_text(f"#!/bin/sh\ncat <<'E'\n{listed}E\n")
    smi.chmod(0o755)
    assert script("begin", tmp_path, proc, **JOB, PATH=f"{smi.parent}:{os.environ['PATH']}").returncode == 0
    (event,) = tags.read([tmp_path]).events
    assert event.gpus == ((A, ""), (B, ""))


# -- what tags become -----------------------------------------------------------------------------------------


def write(folder: Path, event: str, number: int, at: int, *gpus: str, node: str = "n01", **fields: object) -> Path:
    """A tag as the script writes it; `gpus` are those that the job sees."""
    folder.mkdir(exist_ok=True)
    tag_fields = {"event": event, "time": T0 + at, "node": node, "job": number, "uid": 1001, "user": "alice"}
    tag_fields |= {"cluster": "whorl", "slurm_gpus": 0, "visible": ",".join(gpus), "booted": T0 - 1000} | fields
    path = folder / f"{node}-{number}-{event}-{at}.tag"
    path.write_text("".join(f"{key}={value}\n" for key, value in [("whorl-tag", 1), *tag_fields.items(), ("end", 1)]))
    return path


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Any:
    def run(**options: Any) -> ImportReport:
        return import_jobs(store, JobSources(tag_folders=[tmp_path / "spool"], **{"gpus_per_node": ["2"]} | options))

    return run


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


COLUMNS = "job_id, gpu, state, began, ended"


def test_begin_and_end_make_an_allocation_once(run: Any, spool: Path, store: Store) -> None:
    write(spool, "begin", 1, 100, A, B)
    assert run().tags_stored == 1
    running = [("1", gpu, "RUNNING", utc(T0 + 100), None) for gpu in (A, B)]
    assert now(store, COLUMNS) == running
    write(spool, "end", 1, 700, A, B)
    assert [run().tags_stored, run().tags_stored] == [1, 0]
    ended = [("1", gpu, "ENDED", utc(T0 + 100), utc(T0 + 700)) for gpu in (A, B)]
    assert now(store, COLUMNS) == ended
    assert now(store, "distinct gpu_from, share, source") == [("tag", 1.0, "tag")]


def test_removed_tags_are_in_the_store_where_ends_find_their_begin(run: Any, spool: Path, store: Store) -> None:
    write(spool, "begin", 1, 100, A)
    write(spool, "begin", 9, 100, B).write_text("torn")
    assert run(clear=True).tags_refused == {"it is no whole tag of whorl": ["n01-9-begin-100.tag"]}
    assert [path.name for path in spool.iterdir()] == ["n01-9-begin-100.tag"]  # what was not stored stays
    write(spool, "end", 1, 700, A)
    write(spool, "end", 2, 800, B)
    assert "1 jobs have an end and no begin" in run(clear=True).notes[0]
    assert now(store, COLUMNS) == [("1", A, "ENDED", utc(T0 + 100), utc(T0 + 700))]


def test_a_job_without_an_epilog_ends_with_the_boot_or_the_next_job(run: Any, spool: Path, store: Store) -> None:
    write(spool, "begin", 1, 100, A)
    write(spool, "begin", 2, 100, B)
    write(spool, "begin", 3, 100, C, shared=1)
    write(spool, "begin", 4, 500, A)  # job 1 must have ended
    write(spool, "begin", 5, 600, C, shared=1)  # beside job 3
    run()
    assert now(store, "job_id, state, ended") == [
        ("1", "LOST", utc(T0 + 500)),
        *((number, "RUNNING", None) for number in ("2", "3", "4", "5")),
    ]
    write(spool, "begin", 6, 5000, A, booted=T0 + 4000)
    write(spool, "end", 2, 900, B)  # it comes late, and is right all the same
    run()
    assert now(store, "job_id, state, ended") == [
        ("1", "LOST", utc(T0 + 500)),
        ("2", "ENDED", utc(T0 + 900)),
        *((number, "LOST", utc(T0 + 4000)) for number in ("3", "4", "5")),
        ("6", "RUNNING", None),
    ]


def test_a_requeued_job_has_two_allocations_and_a_begin_told_twice_one(run: Any, spool: Path, store: Store) -> None:
    write(spool, "begin", 1, 100, A, restart=0)
    write(spool, "begin", 1, 102, A, restart=0)  # from the job itself
    write(spool, "end", 1, 300, A, restart=0)
    write(spool, "begin", 1, 500, A, restart=1)
    run()
    assert now(store, "restart, state, ended") == [(0, "ENDED", utc(T0 + 300)), (1, "RUNNING", None)]


@pytest.mark.long(short=4)
@pytest.mark.parametrize(
    ("tag_fields", "expected"),
    [
        ({"visible": "0,1", "slurm_gpus": "0-1", "gpu": f"{A}:1\ngpu={B}:0"}, [A, B]),  # all of the node
        ({"visible": "0", "slurm_gpus": "0", "gpu": f"{A}:1\ngpu={B}:0"}, None),  # an index says nothing
        ({"visible": "0", "slurm_gpus": "0", "gpu": f"{A}:1\ngpu={B}:0", "slurm_index": "minor"}, [B]),
        ({"visible": "0", "slurm_gpus": "2", "gpu": f"{A}:1\ngpu={B}:0", "slurm_index": "minor"}, None),
        ({"visible": "0,1", "slurm_gpus": "0,1", "gpu": f"{A}:1\ngpu={B}:0", "mig": 1}, None),  # two instances
        ({"visible": f"MIG-{A[4:]}", "slurm_gpus": "3", "gpu": f"{A}:1", "mig": 1}, [f"MIG-{A[4:]}"]),
        ({"visible": "0", "slurm_gpus": "0"}, None),  # the driver did not answer
        ({"visible": A[:12], "slurm_gpus": "0", "gpu": f"{A}:1\ngpu={B}:0"}, None),  # a UUID that is cut
    ],
)
def test_gpus_are_known_by_uuid_or_not_at_all(
    tag_fields: dict[str, Any], expected: list[str] | None, run: Any, spool: Path, store: Store
) -> None:
    write(spool, "begin", 1, 100, **tag_fields)
    report = run()
    assert now(store, "gpu") == [(gpu,) for gpu in expected or (None,)]
    assert bool(report.tags_unknown) == (expected is None)


LISTED = f"{A}:7\ngpu={B}:6\ngpu={C}:5\ngpu={D}:4"
"""Four GPUs in the order of their PCI addresses; their device files are numbered against it."""
IN_ORDER = f"{A}:0\ngpu={B}:1\ngpu={C}:2\ngpu={D}:3"


@pytest.mark.parametrize(
    ("gres", "gpus", "expected"),
    [
        (["Name=gpu Type=v100 File=/dev/nvidia[4-7]"], LISTED, [B, C]),
        (["name=gpu file=/dev/nvidia[4-5],/dev/nvidia[6,7]  Cores=0-3"], LISTED, [B, C]),
        (["Name=gpu Type=a File=/dev/nvidia[4,5,7]", "Name=gpu Type=b File=/dev/nvidia6"], LISTED, [A, C]),
        (["NodeName=n[02-09] Name=gpu File=/dev/nvidia[0-3]", "NodeName=n01 Name=gpu File=/dev/nvidia[4-7]"],
         LISTED, [B, C]),
        (["AutoDetect=nvml"], IN_ORDER, [B, C]),
        (["AutoDetect=nvml", "Name=gpu File=/dev/nvidia[0-3]"], IN_ORDER, [B, C]),
        (["NodeName=n01 AutoDetect=off Name=gpu File=/dev/nvidia[4-7]"], LISTED, [B, C]),
        (["AutoDetect=nvml"], LISTED, tags.GRES_OTHER_ORDER),
        (["Name=gpu File=/dev/nvidia[0-3]"], LISTED, tags.GRES_OTHER_FILES),
        (["Name=gpu File=/dev/nvidia[4-6]"], LISTED, tags.GRES_OTHER_FILES),
        (["Name=gpu File=/dev/nvidia[4-7]", "Include more.conf"], LISTED, tags.GRES_INCLUDES),
        (["NodeName=n[02 Name=gpu File=/dev/nvidia[4-7]"], LISTED, tags.GRES_INCLUDES),
        (["Name=gpu Count=4"], LISTED, tags.GRES_NO_FILES),
        ([], LISTED, tags.GRES_NOT_READ),
    ],
)  # fmt: skip
def test_an_index_of_slurm_is_what_gres_conf_says_or_nothing(
    gres: list[str], gpus: str, expected: list[str] | str, run: Any, spool: Path, store: Store
) -> None:
    lines = "".join(f"\ngres={line}" for line in gres)
    write(spool, "begin", 1, 100, visible="0,1", slurm_gpus="1,2", gpu=gpus + lines)
    report = run(gpus_per_node=["4"])
    if isinstance(expected, str):
        assert report.tags_unknown == {expected: 1}
    else:
        assert now(store, "gpu, gpu_from") == [(gpu, "tag") for gpu in sorted(expected)]


def test_the_script_notes_the_lines_of_gres_conf_about_its_node(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "gres.conf").write_text(
        "# Name=gpu File=/dev/nvidia9\nAutoDetect=off\nNodeName=n02 Name=gpu File=/dev/nvidia[0-3]\n"
        "NodeName=n[01,03]\tName=gpu \\\n  File=/dev/nvidia[0-1] # both\nName=nic Count=1\n"
    )
    script("begin", tmp_path, proc, **JOB | {"SLURM_JOB_GPUS": "1"}, SLURM_CONF=str(tmp_path / "etc" / "slurm.conf"))
    (event,) = tags.read([tmp_path]).events
    assert [" ".join(line.split()) for line in event.gres] == [
        "AutoDetect=off",
        "NodeName=n[01,03] Name=gpu File=/dev/nvidia[0-1]",
    ]
    assert event.job_gpus(None) == ([A], 1, "")  # index 1 is /dev/nvidia1, which is the first by PCI address


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_in_a_job_the_gpus_that_its_cgroup_leaves_are_the_jobs(proc: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        smi = folder / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: {B})'\n")
        env = {"PATH": f"{name}:{os.environ['PATH']}", "SLURMD_NODENAME": "n01", "WHORL_PROC": str(folder / "proc")}
        env |= JOB | {"SLURM_JOB_GPUS": "1", "SLURM_JOB_UID": "12345"}
        shutil.copytree(proc, folder / "proc")
        for path in (folder, smi, *(folder / "proc").rglob("*")):
            os.chown(path, 12345, 12345)
            path.chmod(0o755)
        line = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-s", "--", "begin", name]
        subprocess.run(line, input=tagging.script(), env=env, text=True, check=True)
        (event,) = tags.read([folder]).events
        assert event.job_gpus(None) == ([B], 1, "")


@pytest.mark.parametrize("index", [{}, {"slurm_index": "minor"}])
def test_no_index_counts_where_a_gpu_has_vanished_or_the_number_is_not_known(
    index: dict[str, Any], run: Any, spool: Path, store: Store
) -> None:
    """Slurm gave the GPUs 0 and 1 of three. The driver lists two: which ones these are, nobody knows."""
    listed = {"visible": "0,1", "slurm_gpus": "0,1", "gpu": f"{A}:1\ngpu={B}:0"} | index
    write(spool, "begin", 1, 100, **listed)
    assert run(gpus_per_node=["3"]).tags_unknown == {tags.OTHER_NUMBER: 1}
    write(spool, "begin", 2, 200, **listed)
    assert run(gpus_per_node=["n02=2"]).tags_unknown == {tags.NO_NUMBER: 1}
    write(spool, "begin", 3, 300, A, slurm_gpus="0")
    assert run(gpus_per_node=["3"]).tags_unknown == {}, "a UUID needs no number"
    assert now(store, "job_id, gpu, node_gpus") == [("1", None, 2), ("2", None, 2), ("3", A, 1)]


@pytest.mark.long
def test_accounting_takes_tags_over_whichever_comes_first(run: Any, spool: Path, store: Store, tmp_path: Path) -> None:
    sacct = saved(tmp_path / "sacct", job(1, 2), job(2, 1, Start=T0 + 800, End=T0 + 900, Submit=T0 + 750))
    write(spool, "begin", 1, 101, A, B)
    write(spool, "end", 1, 700, A, B)
    run()
    assert import_jobs(store, JobSources(file=sacct)).unknown  # job 2 has no tag yet
    write(spool, "begin", 2, 802, C)
    run()
    row = "job_id, gpu, source, gpu_from, account, ended"
    expected = [("1", gpu, "sacct", "tag", "physics", utc(T0 + 700)) for gpu in (A, B)]
    expected += [("2", C, "sacct", "tag", "physics", utc(T0 + 900))]
    assert now(store, row) == expected
    again = import_jobs(store, JobSources(file=sacct))
    assert (again.stored, again.with_gpus) == (0, 2)
    assert now(store, row) == expected


def test_a_tag_without_gpus_takes_none_from_a_job_that_had_all_of_its_node(
    run: Any, spool: Path, store: Store, tmp_path: Path
) -> None:
    know_gpus(store, "n01", each=2)
    sacct = saved(tmp_path / "sacct", job(1, 2), job(2, 1, Start=T0 + 800, End=T0 + 900))
    assert import_jobs(store, JobSources(file=sacct, gpus_per_node=["2"])).with_gpus == 1
    write(spool, "begin", 1, 100, slurm_gpus="0,1", visible="")
    write(spool, "begin", 2, 800, slurm_gpus="0", visible="")
    assert sum(run().tags_unknown.values()) == 2
    expected = [("1", f"GPU-n01-{slot}", "whole node") for slot in range(2)] + [("2", None, None)]
    assert now(store, "job_id, gpu, gpu_from") == expected
    again = import_jobs(store, JobSources(file=sacct, gpus_per_node=["2"]))
    assert (again.with_gpus, again.unknown) == (1, {mapping.SHARED_NODE: 1})
    assert now(store, "job_id, gpu, gpu_from") == expected


def test_tags_of_another_user_and_other_rubbish_are_refused(run: Any, spool: Path, store: Store) -> None:
    forged = write(spool, "begin", 1, 100, A)
    if os.geteuid() == 0:
        os.chown(forged, 12345, -1)
    else:
        forged.unlink()
    write(spool, "begin", 2, 100, A, time="soon")
    write(spool, "begin", 3, 100, A, job="../../etc")
    write(spool, "begin", 4, 100, A, gpu="first")
    (spool / ".n01-5.tag").write_text("being written")
    os.mkfifo(spool / "pipe.tag")  # to open it would wait for a writer
    refused = {why: len(names) for why, names in run().tags_refused.items()}
    assert refused == {
        **({"its file belongs to another user than its job": 1} if os.geteuid() == 0 else {}),
        "it does not say when something began or ended": 1,
        "it does not name a node and a job": 1,
        "it names a GPU that is no UUID": 1,
        "it cannot be read (it is not a regular file)": 1,
    }
    assert now(store) == []


def test_the_verb_runs_the_script_and_the_import_finds_its_tags(
    store: Store, proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {**JOB, "WHORL_PROC": str(proc), "SLURMD_NODENAME": "n01", "CUDA_VISIBLE_DEVICES": "0,1"}.items():
        monkeypatch.setenv(key, value)
    runner, place = CliRunner(), ["--store", str(store.root)]
    (tmp_path / "none").mkdir()
    empty = ["jobs", "import", *place, "--tags", str(tmp_path / "none")]
    assert "there are no tags" in runner.invoke(cli, empty).output
    assert runner.invoke(cli, ["jobs", "tag", "script"]).output == tagging.script()
    for event in ("begin", "end"):
        done = runner.invoke(cli, ["jobs", "tag", event, *place])
        assert (done.exit_code, done.output) == (0, "")
    done = runner.invoke(cli, ["jobs", "import", *place, "--set", "gpus-per-node=2"])
    assert done.exit_code == 0, done.output
    assert "tags: 2 read, 1 allocation stored" in done.output
    assert now(store, "gpu, state") == [(A, "ENDED"), (B, "ENDED")]
    for wrong in (["/dev/null/x"], ["--store", "/dev/null/x"]):
        done = runner.invoke(cli, ["jobs", "tag", "begin", *wrong])
        assert done.exit_code == 0  # Slurm would drain the node
        assert done.stderr
    torn = store.root / "tags" / "torn.tag"
    torn.write_text("torn")
    done = runner.invoke(cli, ["jobs", "import", *place])
    assert done.exit_code == 2
    assert "refused tag torn.tag: it is no whole tag of whorl" in done.stderr
    missing = runner.invoke(cli, ["jobs", "import", *place, "--tags", "/nowhere"])
    assert missing.exit_code == 2
    assert "--tags /nowhere cannot be read" in missing.stderr
