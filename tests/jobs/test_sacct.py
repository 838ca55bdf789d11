"""`whorl jobs import --log`: what sacct says becomes allocations, once, and every line is accounted for."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.errors import InputError, StoreError
from whorl.jobs.accounting import sacct
from whorl.jobs.accounting.importing import ImportReport, JobSources, import_jobs, pseudonym_key
from whorl.store import Store
from whorl.store.importing.content import LINE
from whorl.store.schema import arrow_rows
from whorl.tests.jobs.accounts import COLUMNS, NEWER, T0, job, know_gpus, now, saved, text, utc
from whorl.tests.sizes import count
from whorl.tests.stores import new_store


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Any:
    def run(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS, **options: Any) -> ImportReport:
        options = {"gpus_per_node": ["4"]} | options
        return import_jobs(store, JobSources(file=saved(tmp_path / "sacct.txt", *rows, columns=columns), **options))

    return run


def whorl(store: Store, *arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["jobs", "import", "--store", str(store.root), *map(str, arguments)])


@pytest.mark.long
def test_importing_again_stores_nothing_and_a_change_only_itself(run: Any, store: Store) -> None:
    running = job(2, State="RUNNING", End="Unknown")
    first = run(job(1), running)
    assert (first.stored, first.known) == (2, 0)
    again = run(job(1), running)
    assert (again.stored, again.known) == (0, 2)
    assert now(store, "job_id, state, ended") == [("1", "COMPLETED", utc(T0 + 700)), ("2", "RUNNING", None)]
    over = run(job(1), job(2))
    assert (over.stored, over.known) == (1, 1)
    assert now(store, "job_id, state, ended") == [(n, "COMPLETED", utc(T0 + 700)) for n in ("1", "2")]
    stale = run(job(1), running)  # an old file must not bring the job to life again
    assert (stale.stored, stale.known) == (0, 2)
    assert store.sql("select count(*) n from jobs").to_pylist() == [{"n": 3}]
    assert store.sql("select count(*) n from imports where format = 'sacct'").to_pylist() == [{"n": 2}]


def test_array_tasks_requeues_and_parts_of_a_job_are_allocations_of_their_own(run: Any, store: Store) -> None:
    report = run(
        job(11, 1, JobID="10_1"),
        job(10, 1, JobID="10_2"),
        job(12, 1, State="REQUEUED"),
        job(12, 1, Submit=T0 + 800, Start=T0 + 900, End=T0 + 1000),
        job(13, 1, JobID="13+0"),
        job(14, 1, JobID="13+1"),
        job(15, 1, JobID="15_[3-9%2]", State="PENDING", NodeList="None assigned", Start="Unknown", End="Unknown"),
        job(16, 1, State="CANCELLED by 0", NodeList="None assigned", Start="None"),
        job(17, 0),
        job(18, 1, State="RUNNING", End="Unknown"),
        job(18, 1),
    )
    assert now(store, "job_id, raw_id, state") == [
        ("10_1", "11", "COMPLETED"),
        ("10_2", "10", "COMPLETED"),
        ("12", "12", "COMPLETED"),
        ("12", "12", "REQUEUED"),
        ("13+0", "13", "COMPLETED"),
        ("13+1", "14", "COMPLETED"),
        ("18", "18", "COMPLETED"),
    ]
    assert report.passed == {"that never began": 2, "without a GPU": 1, "that the file has twice": 1}
    assert report.lines == report.allocations + sum(report.passed.values())


def test_the_output_of_sacct_p_and_a_packed_csv_are_read(store: Store, tmp_path: Path) -> None:
    plain = text(job(1))
    quoted = "\n".join(",".join(f'"{cell}"' for cell in line.split("|")) for line in text(job(2)).splitlines())
    (tmp_path / "p.txt.gz").write_bytes(gzip.compress(plain.replace("\n", "|\n").encode()))
    (tmp_path / "quoted.csv").write_text(quoted + "\n")
    stray = text(job(3, JobName='"one" more'), columns=(*COLUMNS, "JobName")).replace("|", ";")
    (tmp_path / "stray.csv").write_text(stray)
    for name in ("p.txt.gz", "quoted.csv", "stray.csv"):
        import_jobs(store, JobSources(file=tmp_path / name))
    assert now(store, 'job_id, job_energy_j, "user"') == [(number, None, "alice") for number in "123"]


# -- which GPUs -----------------------------------------------------------------------------------------------


def test_gpus_on_which_a_collector_saw_a_job_are_its_gpus_where_they_are_as_many_as_it_had(
    run: Any, store: Store
) -> None:
    """Job 1 had two GPUs and used both; job 2 used one of two; job 3 ran before the one that was seen."""
    readings = [("1", 0, 300), ("1", 1, 300), ("2", 2, 300), ("3", 3, 90_000)]
    rows: dict[str, list[Any]] = {
        "cluster": ["whorl"] * 4,
        "allocation": [f"{number}@n01@{began}" for number, _, began in readings],
        "raw_id": [number for number, _, _ in readings],
        "job_id": [number for number, _, _ in readings],
        "node": ["n01"] * 4,
        "gpu": [f"GPU-n01-{slot}" for _, slot, _ in readings],
        "began": [utc(T0 + began) for _, _, began in readings],
        "share": [1.0] * 4,
        "source": ["cgroup"] * 4,
        "gpu_from": ["process"] * 4,
        "recorded": [utc(T0 + 400)] * 4,
    }
    store.append({"jobs": arrow_rows("jobs", rows)}, "labels")
    report = run(job(1, 2), job(2, 2), job(3, 1))
    assert now(store, "job_id, gpu, gpu_from, source", "job_id = '1'") == [
        ("1", "GPU-n01-0", "process", "sacct"),
        ("1", "GPU-n01-1", "process", "sacct"),
    ]
    assert now(store, "job_id, gpu, source", "job_id <> '1'") == [
        ("2", "GPU-n01-2", "cgroup"),
        ("2", None, "sacct"),
        ("3", "GPU-n01-3", "cgroup"),
        ("3", None, "sacct"),
    ]
    assert report.with_gpus == 1


def test_the_inventory_is_that_of_the_time(run: Any, store: Store) -> None:
    """A card that was replaced, one that moved away, and nodes that were first seen while a job ran, and after one."""
    know_gpus(store, "n01", "n02")
    know_gpus(store, "n03", seen=T0 + 300)
    know_gpus(store, "n04", seen=T0 + 3000)
    rows: dict[str, Any] = {"cluster": ["whorl"] * 2, "gpu": ["GPU-new", "GPU-n02-3"], "node": ["n01", "n09"]}
    rows |= {"slot": [0, 0], "first_seen": [utc(T0 + 1000)] * 2}
    store.append({"gpus": arrow_rows("gpus", rows)}, "later")
    late: Any = {"Submit": T0 + 2000, "Start": T0 + 2100, "End": T0 + 2200, "ElapsedRaw": 100}
    jobs = [
        job(1),
        job(2, **late),
        job(3, 3, "n02", **late),
        job(4, 4, "n02", **late),
        job(5, 4, "n03"),
        job(6, 4, "n04"),
    ]
    run(*jobs, gpus_per_node=["4", "n02=3"])
    assert now(store, "job_id, gpu") == [
        *(("1", f"GPU-n01-{slot}") for slot in range(4)),
        *(("2", f"GPU-n01-{slot}") for slot in range(1, 4)),
        ("2", "GPU-new"),
        *(("3", f"GPU-n02-{slot}") for slot in range(3)),
        ("4", None),  # more than the store knows there
        *(("5", f"GPU-n03-{slot}") for slot in range(4)),  # it made the GPUs known, as jobs of a campaign do
        ("6", None),  # nobody knew the node while it ran
    ]


@pytest.mark.long
def test_a_store_that_knows_a_part_of_a_node_names_no_gpu(run: Any, store: Store) -> None:
    """As after `whorl probe run --gpu`, or in a job that sees its own GPUs only."""
    know_gpus(store, "n01", "n02", each=2)
    assert "nobody said how many" in str(run(job(1, 2), gpus_per_node=[]).unknown)
    assert "another number of GPUs than they have" in str(run(job(1, 2)).unknown)
    assert now(store, "gpu") == [(None,)]
    run(job(1, 2), job(2, 2, "n02"), gpus_per_node=["4", "n02=2"])
    gpus_found = [("1", None), ("2", "GPU-n02-0"), ("2", "GPU-n02-1")]
    assert now(store, "job_id, gpu") == gpus_found
    again = run(job(1, 2), job(2, 2, "n02"), gpus_per_node=[])  # what was known is known still
    assert (again.stored, now(store, "job_id, gpu")) == (0, gpus_found)
    with pytest.raises(InputError, match="is not \\[NODES=\\]NUMBER"):
        run(job(1), gpus_per_node=["n01:4"])


def test_what_is_named_follows_from_what_is_known(run: Any, store: Store) -> None:
    """Random jobs on random nodes, compared with the rule in plain words: all GPUs of all nodes, or none."""
    random, has = Random(7), {}
    for number in range(1, 9):
        has[f"n{number}"] = random.randint(1, 4)
        know_gpus(store, f"n{number}", each=has[f"n{number}"])
    has["n9"] = 0  # nobody knows it
    random_jobs = {}
    for number in range(count(400, short=60)):
        nodes = random.sample(sorted(has), random.randint(1, 3))
        most = sum(has[node] for node in nodes)
        random_jobs[str(number)] = nodes, max(1, most + random.choice([-1, 0, 0, 1]))
    numbers = [f"{node}={gpus}" for node, gpus in has.items() if gpus]
    run(
        *(job(int(name), gpus, ",".join(nodes), len(nodes)) for name, (nodes, gpus) in random_jobs.items()),
        gpus_per_node=numbers,
    )
    gpus_found: dict[str, list[tuple[str, str | None]]] = {}
    for name, node, gpu in now(store):
        gpus_found.setdefault(name, []).append((node, gpu))
    for name, (nodes, gpus) in random_jobs.items():
        all_gpus = [(node, f"GPU-{node}-{slot}") for node in sorted(nodes) for slot in range(has[node])]
        certain = gpus == len(all_gpus) and all(has[node] for node in nodes)
        assert gpus_found[name] == (all_gpus if certain else [(node, None) for node in sorted(nodes)]), name


# -- times ----------------------------------------------------------------------------------------------------


def test_times_without_a_zone_are_refused_until_one_is_given(store: Store, tmp_path: Path) -> None:
    times: Any = {"Submit": "2026-07-01T11:00:00", "Eligible": "2026-07-01T11:00:00"}
    file = saved(tmp_path / "local.txt", job(1, **times, Start="2026-07-01T12:00:00", End="2026-07-01T12:10:00"))
    with pytest.raises(InputError, match=r"local.txt: its times have no time zone \(line 2\).*SLURM_TIME_FORMAT=%s"):
        import_jobs(store, JobSources(file=file))
    with pytest.raises(InputError, match="there is no such time zone"):
        import_jobs(store, JobSources(file=file, time_zone="Mars/Base"))
    import_jobs(store, JobSources(file=file, time_zone="Europe/Berlin"))
    assert [str(row[0]) for row in now(store, "began")] == ["2026-07-01 10:00:00"]


def test_the_hour_that_occurs_twice_is_told_by_the_elapsed_seconds(store: Store, tmp_path: Path) -> None:
    """In Berlin the clocks go back on 2026-10-25 at 03:00: 02:30 is at 00:30 and at 01:30 UTC."""

    def at(start: str, end: str, elapsed: int, number: int) -> dict[str, str]:
        day = "2026-10-25T"
        return job(number, Submit=f"{day}01:00:00", Start=day + start, End=day + end, ElapsedRaw=elapsed)

    rows = [
        at("01:30:00", "02:30:00", 3600, 1),
        at("01:30:00", "02:30:00", 7200, 2),
        at("02:30:00", "03:30:00", 3600, 3),
    ]
    report = import_jobs(store, JobSources(file=saved(tmp_path / "x", *rows), time_zone="Europe/Berlin"))
    spans = [(str(began)[11:], str(ended)[11:]) for _, began, ended in now(store, "job_id, began, ended")]
    assert spans == [("23:30:00", "00:30:00"), ("23:30:00", "01:30:00"), ("01:30:00", "02:30:00")]
    assert "occurs twice" in report.notes[0]


# -- bad input ------------------------------------------------------------------------------------------------


def test_bad_lines_are_refused_with_their_number_and_the_others_stored(store: Store, tmp_path: Path) -> None:
    rows = [
        job(1),
        job(2, End=T0 + 50),
        job(3, NodeList="n[1-"),
        job(4, NodeList="n[1-2]", NNodes=3),
        job(5, Start="yesterday"),
        job(6, Submit="Unknown"),
        job(7, AllocTRES="billing=8+"),
    ]
    file = tmp_path / "bad.txt"
    file.write_text(text(*rows) + "8|8\n")
    done = whorl(store, "--log", file)
    assert done.exit_code == 2, done.output
    assert [row[0] for row in now(store, "job_id")] == ["1"]
    for line, why in {
        3: "it ended before it began: a clock was set back",
        4: "NodeList is no list of nodes",
        5: "NodeList does not have as many nodes as NNodes says: it was cut",
        6: "Start is no time",
        7: "it has no time of submission",
        8: "AllocTRES was cut",
        9: f"it has 2 fields, but the header names {len(COLUMNS)}",
    }.items():
        assert f"bad.txt: refused line {line}: {why}" in done.stderr
    whorl(store, "--log", file)
    events = store.sql("select ts, cluster, node, job_id, duration_ns, detail from events").to_pylist()
    assert [tuple(row.values()) for row in events] == [
        (utc(T0 + 100), "whorl", "n01", "2", -50 * 10**9,
         "job 2 is not stored: it ended before it began (bad.txt, line 3)")
    ]  # fmt: skip


def test_a_list_of_nodes_that_was_cut_names_no_nodes(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "aligned.txt"
    columns = tuple(column for column in COLUMNS if column != "NNodes")
    file.write_text(aligned(job(1), job(2, NodeList="n01,n02,n03,n0456"), columns=columns, NodeList=12))
    done = whorl(store, "--log", file)
    assert done.exit_code == 2, done.output
    assert "aligned.txt: refused line 4: NodeList was cut; give -P" in done.stderr
    assert now(store, "job_id, node") == [("1", "n01")]


def test_a_cluster_whose_name_was_cut_is_asked_for(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "aligned.txt"
    file.write_text(aligned(job(1, Cluster="perlmutter-gpu"), Cluster=10))
    assert "does not say which cluster it is of: give --cluster NAME" in whorl(store, "--log", file).stderr
    assert whorl(store, "--log", file, "--cluster", "perlmutter-gpu").exit_code == 0
    assert now(store, "cluster, job_id") == [("perlmutter-gpu", "1")]


def aligned(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS, **widths: int) -> str:
    """What sacct without -P prints, where columns have these widths, or 60."""
    width = {column: widths.get(column, 60) for column in columns}
    rule = {column: "-" * width[column] for column in columns}

    def cell(column: str, value: str) -> str:
        return value.rjust(width[column]) if len(value) <= width[column] else value[: width[column] - 1] + "+"

    lines = [dict(zip(columns, columns, strict=True)), rule, *rows]
    return "".join(" ".join(cell(column, str(line[column])) for column in columns) + " \n" for line in lines)


@pytest.mark.long(short=3)
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", " is empty"),
        ('{"jobs": [{"job_id": 1,', " is cut short or damaged"),
        ('{"nodes": []}', " is JSON without a list of jobs"),
        ('{"jobs": [{"job_id": 1, "job_state": ["RUNNING"]}]}', ": job 1 of its list lacks fields of sacct"),
        ('{"jobs": [7]}', ": job 1 of its list lacks fields of sacct"),
        (
            '{"jobs": [], "errors": [{"error": "no database"}]}',
            ' holds errors of sacct and no job: [{"error": "no database"}]',
        ),
        ("1|alice\n", " is no output of sacct -P: its first line names no columns"),
        (text(job(1)).replace("|", ","), " is parted by commas, which stand in its fields too"),
        (text(job(1), columns=COLUMNS[:8]), " has no column State"),
        (text(job(1), columns=tuple(c for c in COLUMNS if c != "AllocTRES")), " has no column AllocTRES"),
        (text(job(1), columns=tuple(c for c in COLUMNS if c != "Cluster")), " does not say which cluster"),
        (text(job(1), columns=(*COLUMNS, "User")), " has the column User twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_whole(content: str, why: str, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "sacct.txt"
    file.write_text(content)
    done = whorl(store, "--log", file)
    assert done.exit_code == 2
    assert f"sacct.txt{why}" in done.stderr
    assert ("Of another scheduler, write who had which GPU as a CSV" in done.stderr) == ("no output of sacct" in why)
    assert now(store) == []


def test_a_name_with_the_delimiter_costs_no_row_and_line_breaks_are_warned_of(store: Store, tmp_path: Path) -> None:
    columns = (*COLUMNS[:4], "JobName", *COLUMNS[4:])
    rows = [job(1, JobName="a|b|c"), job(2, JobName="broken\nname"), job(3, JobName='"quote')]
    report = import_jobs(store, JobSources(file=saved(tmp_path / "names", *rows, columns=columns)))
    assert now(store, 'job_id, "user", node') == [("1", "alice", "n01"), ("3", "alice", "n01")]
    assert sum(len(lines) for lines in report.refused.values()) == 2
    assert "line break in it can pass for a job" in report.notes[0]


# -- pseudonyms -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_pseudonyms_are_the_same_in_a_store_and_other_in_another(store: Store, tmp_path: Path) -> None:
    file = saved(tmp_path / "x", job(1), job(2, User="bob"), job(3, User="alice"))
    import_jobs(store, JobSources(file=file, anonymise=True))
    alice, bob, again = (row[1] for row in now(store, 'job_id, "user", account'))
    assert alice == again != bob
    assert alice.startswith("user-")
    key = store.root / "pseudonyms.key"
    assert key.stat().st_mode & 0o777 == 0o600
    # Another import, without the option: nobody is named by mistake, and nothing is stored twice.
    later = import_jobs(store, JobSources(file=saved(tmp_path / "y", job(1), job(4))))
    assert (later.stored, later.known) == (1, 1)
    assert now(store, 'distinct "user"', "job_id in ('1', '4')") == [(alice,)]
    assert "pseudonyms" in " ".join(later.notes)
    assert not [path for path in store.root.rglob("*") if path.is_file() and b"alice" in path.read_bytes()]
    second_store = new_store(tmp_path / "other")
    import_jobs(second_store, JobSources(file=file, anonymise=True))
    assert now(second_store, 'job_id, "user"')[0][1] != alice
    key.write_bytes(b"short")
    assert "is damaged" in whorl(store, "--log", file).stderr


def test_without_a_key_nobody_gets_a_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"pseudonyms\.key cannot be made: No such file"):
        pseudonym_key(tmp_path / "gone", make=True)


# -- the command ----------------------------------------------------------------------------------------------


def test_json_and_words_that_contradict(store: Store, tmp_path: Path) -> None:
    file = saved(tmp_path / "x", job(1), job(2, End=T0))
    done = whorl(store, "--log", file, "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 2
    assert document["schema"] == "whorl.jobs_import/1"
    assert document["accounting"]["stored"] == 1
    assert document["accounting"]["refused"] == [
        {"reason": "it ended before it began: a clock was set back", "count": 1, "lines": [3]}
    ]
    for wrong in (["--log", file, "--since", "1d"], ["--until", "1d"], ["--set", "time-zone=UTC", "--since", "1d"], []):
        assert whorl(store, *wrong).exit_code == 2


@pytest.fixture
def fake_sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of sacct that has the fields of the file `fields`, and writes down how it is called."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sacct"
    program.write_text(
        f"""#!/bin/sh
        [ "$1" != --helpformat ] || exec cat {tmp_path}/fields
        echo "$TZ $SLURM_TIME_FORMAT $SACCT_FORMAT" "$@" > {tmp_path}/called
        cat {tmp_path}/answer
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SACCT_FORMAT", "JobName")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return tmp_path


def test_sacct_is_asked_for_the_fields_that_it_has_in_utc(fake_sacct: Path, store: Store) -> None:
    has = tuple(name for name in NEWER if name not in ("UID", "ConsumedEnergyRaw"))
    (fake_sacct / "fields").write_text("   ".join(has))
    expected = [name for name in has if name not in ("Planned", "Licenses")]
    (fake_sacct / "answer").write_text(text(job(1, Restarts=3), columns=tuple(expected), delimiter="\x1f"))
    done = whorl(store, "--since", "2026-11-01T06:00:00+02:00", "--until", "2026-11-02")
    assert done.exit_code == 0, done.output
    assert now(store, "job_id, restart") == [("1", 3)]
    called = (fake_sacct / "called").read_text().strip("\n").split(" ")
    assert called[:3] == ["UTC", "%s", ""]
    assert {"--starttime=2026-11-01T04:00:00", "--endtime=2026-11-02T00:00:00", "--delimiter=\x1f"} <= {*called}
    assert {"--allusers", "--allocations", "--duplicates", "--parsable2"} <= {*called}
    (command,) = (word.removeprefix("--format=") for word in called if word.startswith("--format="))
    assert sorted(command.split(",")) == sorted(expected)
    (fake_sacct / "fields").write_text("JobIDRaw State")
    old = whorl(store, "--since", "1d")
    assert old.exit_code == 5
    assert "this sacct has no field NodeList" in old.stderr


# -- json --------------------------------------------------------------------------------------------------------------
# `sacct --json`: what it says of jobs becomes the rows that `sacct -P` gives, in the spelling of every version.


Number = Callable[[int | None], Any]
MEMORY = {"4000M": 4000, "40G": 40960, "0": 0}
ROWS = (
    job(1, 4),
    job(2, 2, "n[01-02]", 2, State="CANCELLED by 1001", ExitCode="0:15", TimelimitRaw="UNLIMITED"),
    job(12, 1, JobID="10_3", State="FAILED", ExitCode="3:0", QOS="long"),
    job(13, 1, JobID="13+1", AllocTRES="billing=8,cpu=8,gres/gpu:a=1,gres/gpu:b=1,gres/gpu=2,mem=40G,node=1"),
    job(14, 1, State="REQUEUED"),
    job(14, 1, Submit=T0 + 800, Eligible=T0 + 810, Start=T0 + 900, End="Unknown", ElapsedRaw=50, State="RUNNING"),
    job(15, 4, State="PENDING", NodeList="None assigned", NNodes=0, Start="Unknown", End="Unknown", ElapsedRaw=0),
    job(16, 0),
    job(17, 1, ConsumedEnergyRaw=500, AllocTRES="billing=8,cpu=8,energy=500,gres/gpu=1,mem=0,node=1"),
    job(18, 1, End=T0 + 50, ElapsedRaw=0),
)
STEPS = [job(17, JobIDRaw=f"17.{name}", ConsumedEnergyRaw=joule) for name, joule in (("batch", 200), ("0", 900))]


def plain(number: int | None) -> Any:
    """A number of v0.0.37 and v0.0.38."""
    return number


def wrapped(number: int | None) -> Any:
    """A number of v0.0.39 and later."""
    return {"set": number is not None, "infinite": False, "number": number or 0}


def resources(listed: str) -> list[dict[str, Any]]:
    resources = []
    for resource in listed.split(","):
        name, count = resource.split("=")
        kind, _, subkind = name.partition("/")
        resources.append(
            {"type": kind, "name": subkind, "id": 1, "count": MEMORY[count] if kind == "mem" else int(count)}
        )
    return [*resources, {"type": "energy", "name": "", "id": 3, "count": -2}] if "energy" not in listed else resources


def as_json(row: dict[str, str], number: Number, listed: bool) -> dict[str, Any]:
    """A job as sacct --json prints it."""

    def instant(name: str) -> int:
        return int(row[name]) if row[name].isdigit() else 0

    state = row["State"].split()[0]
    code, signal = map(int, row["ExitCode"].split(":"))
    main, _, part = row["JobID"].partition("+")
    array, _, task = main.partition("_")
    limit = int(row["TimelimitRaw"]) if row["TimelimitRaw"].isdigit() else None
    states = ["PENDING", "REQUEUED"] if state == "REQUEUED" else [state]
    ended = {"id": number(signal or None), "name": ""} if listed else {"signal_id": signal or None, "name": ""}
    return {
        "account": row["Account"], "allocation_nodes": int(row["NNodes"]), "user": row["User"], "name": "a|b",
        "array": {"job_id": int(array) if task else 0, "task_id": number(int(task) if task else None), "task": ""},
        "association": {"account": row["Account"], "cluster": "whorl", "user": row["User"]},
        "cluster": row["Cluster"], "partition": row["Partition"], "qos": row["QOS"], "nodes": row["NodeList"],
        "het": {"job_id": int(main) if part else 0, "job_offset": number(int(part) if part else None)},
        "job_id": int(row["JobIDRaw"]),
        "exit_code": {"status": ["SUCCESS"], "return_code": number(code), "signal": ended},
        "state": {"current": states if listed else state, "reason": "None"},
        "time": {
            "elapsed": int(row["ElapsedRaw"]), "eligible": instant("Eligible"), "end": instant("End"),
            "start": instant("Start"), "submission": instant("Submit"), "suspended": 0, "limit": number(limit),
        },
        "tres": {"allocated": resources(row["AllocTRES"]), "requested": resources(row["ReqTRES"])},
        "steps": [
            {
                "state": ["COMPLETED"] if listed else "COMPLETED",
                "step": {"id": step["JobIDRaw"] if listed else step["JobIDRaw"].partition(".")[2], "name": "a"},
                "statistics": {"energy": {"consumed": number(int(step["ConsumedEnergyRaw"]))}},
            }
            for step in STEPS
            if step["JobIDRaw"].startswith(f"{row['JobIDRaw']}.")
        ],
    }  # fmt: skip


def said(*jobs: dict[str, Any], parser: str = "data_parser/v0.0.40") -> str:
    return json.dumps({"jobs": jobs, "meta": {"plugin": {"data_parser": parser}}, "errors": [], "warnings": []})


@pytest.mark.parametrize(("number", "listed"), [(plain, False), (wrapped, False), (wrapped, True)])
def test_json_gives_the_rows_that_text_gives(number: Number, listed: bool) -> None:
    from_text = sacct.read(text(*ROWS, *STEPS), "acct.txt", None, None)
    accounts = sacct.read(said(*(as_json(row, number, listed) for row in ROWS)), "acct.json", None, None)
    assert accounts.frame.drop(LINE).rows(named=True) == from_text.frame.drop(LINE).rows(named=True)
    assert accounts.frame.schema == from_text.frame.schema
    assert (accounts.passed, accounts.lines) == (from_text.passed, from_text.lines)
    assert list(accounts.refused.lines.items()) == [("it ended before it began: a clock was set back", [10])]
    assert "acct.json is JSON: its line N is the job N of its list" in accounts.notes


def test_slurm_21_08_writes_as_start_when_a_job_was_eligible() -> None:
    ended = as_json(job(1, Start=T0, Eligible=T0, ElapsedRaw=600), plain, listed=False)
    runs = as_json(job(2, Start=T0, Eligible=T0, End="Unknown", State="RUNNING"), plain, listed=False)
    accounts = sacct.read(said(ended, runs, parser="openapi/dbv0.0.37"), "acct.json", None, None)
    assert accounts.frame["began"].dt.epoch("s").to_list() == [T0 + 100]
    assert accounts.passed == {"that never began": 1}


def test_an_exit_status_that_slurm_22_05_lost_is_not_known() -> None:
    failed = as_json(job(1, State="FAILED"), plain, listed=False)
    accounts = sacct.read(said(failed, parser="openapi/dbv0.0.38"), "acct.json", None, None)
    assert accounts.frame["exit_code"].to_list() == [None]
