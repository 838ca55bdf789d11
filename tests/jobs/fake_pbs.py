"""A PBS of small shell programs with a queue that changes: what `qsub` takes, `qstat` shows, and `end_jobs` ends.

The shape of what they print is that of the recorded outputs in test_schedulers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whorl.jobs.campaign import find_campaign
from whorl.jobs.pbs import Pbs
from whorl.store import Store
from whorl.tests.jobs.commands import me
from whorl.tests.jobs.fake_slurm import store_runs

_QSTAT = """case "$*" in
  *-B*) printf 'Server: pbs-01\\n    server_state = Active\\n    default_queue = workq\\n' ;;
  *-Q*) printf 'Queue: workq\\n    queue_type = Execution\\n    enabled = True\\n    started = True\\n' ;;
  *) cat {folder}/queue/* 2>/dev/null ;;
esac
"""
_QSUB = """id=$(($(cat {folder}/last) + 1)); echo $id > {folder}/last
cat > {folder}/script-$id
host=$(sed -n "s/^#PBS -l select=.*:host=//p" {folder}/script-$id | tr -d "'")
cat > {folder}/queue/$id <<END
Job Id: $id.pbs-01
    Job_Name = whorl
    Job_Owner = {user}@login
    job_state = R
    exec_host = $host/0*4
    Resource_List.walltime = 00:10:00
    stime = Wed Nov 18 23:34:17 2026
    Variable_List = PBS_O_HOME=/home,
\t$(sed -n "s/^#PBS -v //p" {folder}/script-$id | tr -d "'")

END
echo $id.pbs-01
"""


class FakePbs(Pbs):
    """Nodes n01, n02, ... of four GPUs in the queue `workq`."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder
        (folder / "queue").mkdir(parents=True)
        (folder / "last").write_text("100\n")
        self.vnodes = {f"n{number:02d}": _vnode(f"n{number:02d}") for number in range(1, nodes + 1)}
        self.show_nodes()
        self.does("qstat", _QSTAT)
        self.does("qsub", _QSUB)
        self.does("pbsnodes", "cat {folder}/nodes\n")
        super().__init__(environment={"PATH": f"{folder}:/usr/bin:/bin"})

    def show_nodes(self) -> None:
        """Let `pbsnodes` print `vnodes`."""
        (self.folder / "nodes").write_text("".join(pbs_text(name, row) for name, row in self.vnodes.items()))

    def does(self, name: str, script: str, *, before: str = "") -> None:
        """What a command does from now on; `before` that, this."""
        path = self.folder / name
        text = (before + script).replace("{folder}", str(self.folder)).replace("{user}", me())
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def qsub(self, before: str) -> None:
        """Let qsub do something before its work."""
        self.does("qsub", _QSUB, before=before)

    def submitted(self) -> list[str]:
        """The names of the jobs that were submitted, in their order."""
        return [job.name for job in self.queue()]

    def end_jobs(self, store: Path, campaign: str, *, exit_status: int = 0) -> None:
        """End the jobs that run; those that end well leave their runs."""
        for path in (self.folder / "queue").iterdir():
            text = path.read_text()
            if "job_state = R" not in text or "WHORL_JOB" not in text:
                continue
            node = text.partition("WHORL_JOB=")[2].split(":")[2].partition(",")[0].strip()
            if exit_status == 0:
                opened = Store.open(store)
                store_runs(opened, find_campaign(opened, campaign), f"{node}.example.org", path.name)
            path.write_text(text.replace("job_state = R", f"job_state = F\n    Exit_status = {exit_status}"))


def pbs_text(head: str, fields: Mapping[str, object]) -> str:
    """An object as PBS prints it; a value that is an object becomes fields with a dot."""
    lines = [head]
    for key, value in fields.items():
        values = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        lines += [f"    {name} = {part}" for name, part in values.items()]
    return "\n".join(lines) + "\n\n"


def _vnode(host: str) -> dict[str, Any]:
    return {
        "state": "free",
        "resources_available": {"host": host, "ncpus": 64, "ngpus": 4},
        "sharing": "default_shared",
    }
