"""Jobs of a trace with the plans of `whorl advise burst`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import whorl
from whorl.analysis.replay.jobs import Job, Piece, Trace, read_plans, with_plan
from whorl.errors import InputError
from whorl.tests.burst_files import BATCH, write_files


def test_jobs_of_a_planned_model_get_its_stages_and_less_work(tmp_path: Path) -> None:
    reply = whorl.advise_burst(*write_files(tmp_path), batch=BATCH, gpus=[2, 4], limit="1e9,data-parallel")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(reply.json()))
    planned = [row.plan for row in reply.result.rows]
    pieces = (Piece(60.0, 1, BATCH), Piece(40.0, 1, BATCH))
    jobs = (
        Job("a", 0, 4, 100, model="small", pieces=pieces),
        Job("b", 0, 3, 100, model="small"),
        Job("c", 0, 4, 100, model="other"),
        Job("d", 0, 1, 100, model="small"),
    )
    trace = with_plan(Trace("t", jobs), {"small": read_plans(path)})
    first, *others = trace.jobs
    assert first.gpus == planned[2].width
    assert first.stages == planned[2].stages
    assert first.ideal_s == pytest.approx(100 * planned[2].time_ms / planned[3].time_ms)
    assert sum(piece.work_s for piece in first.pieces) == pytest.approx(first.ideal_s)
    assert others == list(jobs[1:])
    assert len(trace.notes) == 1, "no plan for three GPUs"
    with pytest.raises(InputError, match="vgg16"):
        with_plan(Trace("t", jobs), {"vgg16": read_plans(path)})


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": "whorl.advise.burst/1", "rows": [{"limit": 2}]}', "x"])
def test_another_file_is_no_plan(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match=r"plan\.json"):
        read_plans(tmp_path / "plan.json")
