"""`whorl campaign` on the daemons of tests/slurm/daemons.py: drivers that can be killed, and what a store has then."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whorl.store import Store
from whorl.tests.slurm.daemons import Slurm

_numbers = itertools.count()


class Site:
    """A folder of alice's with the file of a simulated cluster, and a store."""

    def __init__(self, slurm: Slurm, fleet: str = "", user: str = "alice") -> None:
        self.slurm, self.user = slurm, user
        words, self.environment = slurm.python_of_jobs(user)
        self._program = words
        self.folder = slurm.folder / "out" / f"campaign-{next(_numbers)}"
        self.folder.mkdir()
        shutil.chown(self.folder, user)
        self.store = self.folder / "store"
        self.fleet = self.folder / "fleet.toml"
        self.fleet.write_text(f'cluster = "tiny"\nnodes = "n[01-{slurm.nodes:02d}]"\nseed = 3\n{fleet}')

    def words(self, verb: str, *options: str) -> list[str]:
        """The words of `whorl campaign VERB`, with jobs that can start whorl."""
        arguments = ["campaign", verb, "--store", str(self.store), *options]
        if verb == "status":
            return arguments
        program = ["--program", shlex.join([*self._program, "-m", "whorl"])]
        setup = [word for name, value in self.environment.items() for word in ("--setup", f"export {name}={value}")]
        arguments += ["--set", "settle=0"] if verb == "run" else []
        return [*arguments, "--set", f"fleet={self.fleet}", *program, *setup]

    def campaign(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `whorl campaign VERB`, in the process that answers this user's commands."""
        done = self.slurm.whorl(*self.words(verb, *options), user=self.user)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def status(self, *options: str) -> dict[str, Any]:
        done = self.campaign("status", "--json", *options)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def states(self) -> dict[str, str]:
        """The state of each node."""
        return {row["node"]: row["state"] for row in self.status()["by_node"]}

    @contextlib.contextmanager
    def driver(self, *options: str, path: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """A driver in a process of its own, killed at the end of the block. `path` is looked for commands first."""
        environment = self.slurm.environment() | {"USER": self.user} | self.environment
        if path is not None:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        driver = subprocess.Popen(
            Slurm._line([*self._program, "-m", "whorl", *self.words("run", *options)], self.user, read_all=False),
            env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield driver
        finally:
            driver.kill()
            driver.communicate()

    def runs(self, campaign: str) -> Counter[tuple[str, str]]:
        """How many runs each GPU (`node/slot`) and probe has in a campaign."""
        store = Store.open(self.store)
        rows = store.sql(
            "SELECT g.node || '/' || g.slot, r.workload FROM runs r JOIN (SELECT DISTINCT gpu, node, slot FROM gpus) g "
            f"USING (gpu) WHERE r.campaign = '{campaign}'"
        )
        return Counter(zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True))

    def submitted(self) -> Counter[str]:
        """How many jobs of each name Slurm has seen that write to this folder."""
        lines = self.slurm.run("scontrol", "-o", "show", "jobs").stdout.splitlines()
        of_site = (line for line in lines if f"StdOut={self.folder}/" in line)
        return Counter(re.findall(r"JobName=(\S+)", "\n".join(of_site)))

    def job(self, node: str, state: str = "") -> str | None:
        """The id of a node's job, if it is in this state."""
        lines = self.slurm.run("squeue", "-h", "-a", "-o", "%j %T %A").stdout.splitlines()
        rows = (line.split() for line in lines if line.startswith("whorl:"))
        return next((row[2] for row in rows if row[0].split(":")[2] == node and state in ("", row[1])), None)


def every_gpu(slurm: Slurm, *probes: str) -> dict[tuple[str, str], int]:
    """What `Site.runs` gives where each GPU has one run of each probe."""
    return {(f"{node}/{slot}", probe): 1 for node in slurm.names for slot in range(4) for probe in probes}
