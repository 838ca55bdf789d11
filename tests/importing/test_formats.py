"""The seam of formats: rows of a reader, named after meanings, take the way of all imports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "content", ["JobIDRaw|JobID|State\n7|7|COMPLETED\n", '{"meta": {},\n "jobs": [{"derived_exit_code": {}}]}\n']
)
def test_what_sacct_prints_is_told(content: str, tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = tmp_path / "acct.txt"
    path.write_text(content)
    assert "is what sacct prints of jobs; read it with whorl jobs import --log" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        "05/01/2026 10:00:00;S;1234.pbs01;user=ann exec_vnode=(n01:ngpus=4)\n",
        '"JOB_FINISH" "10.108" 1777603700 101 33816578 64 1777600000\n',
    ],
)
def test_accounts_of_other_schedulers_are_told(content: str, tmp_path: Path, refusal: Callable[..., str]) -> None:
    path = tmp_path / "acct.txt"
    path.write_text(content)
    assert "write who had which GPU as a CSV with job_id, node, gpu, began, ended" in refusal(path)
