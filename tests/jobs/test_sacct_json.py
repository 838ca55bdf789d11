"""`sacct --json`: what it says of jobs becomes the rows that `sacct -P` gives, in the spelling of every version."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.jobs.accounting import sacct
from whorl.store.importing.content import LINE
from whorl.tests.jobs.accounts import T0, job, text

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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"jobs": [{"job_id": 1,', "a.json is cut short or damaged"),
        ('{"nodes": []}', "a.json is JSON without a list of jobs"),
        ('{"jobs": [{"job_id": 1, "job_state": ["RUNNING"]}]}', "a.json: job 1 of its list lacks fields of sacct"),
        ('{"jobs": [7]}', "a.json: job 1 of its list lacks fields of sacct"),
        ('{"jobs": [], "errors": [{"error": "no database"}]}', "a.json holds errors of sacct and no job.*no database"),
    ],
)
def test_other_json_is_one_sentence(content: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        sacct.read(content, "a.json", None, None)
