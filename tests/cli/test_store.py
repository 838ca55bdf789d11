"""`whorl store compact`: what it says of what it leaves, and of another process at work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.errors import StoreError
from whorl.store import Store


def whorl(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["store", *map(str, arguments)])


def reading(store: Store, node: str) -> None:
    with store.journal(node, background=False, offline=True) as journal:
        journal.append(time.time_ns(), ["g"], {"cluster": "c", "power_mw": 1})


def test_a_second_compactor_says_so_and_ends(store: Store) -> None:
    code = "import sys; from pathlib import Path; from whorl.store import replacing\n"
    code += "with replacing.Compactor(Path(sys.argv[1]), replacing.OFFLINE): print(flush=True); sys.stdin.readline()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, store.root], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for verb in (["compact"], ["prune", "--keep", "1d"]):
            done = whorl(*verb, "--store", store.root)
            assert (done.exit_code, f"process {holder.pid} on " in done.stdout) == (0, True)
        with pytest.raises(StoreError, match=f"process {holder.pid} on "):
            store.compact()
        holder.communicate("\n")
    assert whorl("compact", "--offline", "--store", store.root).exit_code == 0


def test_compacting_says_what_it_left(store: Store) -> None:
    reading(store, "n1")
    (path,) = store.files("telemetry")
    path.write_bytes(path.read_bytes()[:-1])
    with store.journal("n2", background=False, offline=True) as journal:
        journal.append(time.time_ns(), ["g"], {"cluster": "c", "power_mw": 2})
        done = whorl("compact", "--offline", "--store", store.root, "--json")
        text = whorl("compact", "--offline", "--store", store.root).stdout
    sentence = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [Path(entry).name.partition("-")[0] for entry in sentence["open_journals"]] == ["n2"]
    assert [entry.partition(": ")[0] for entry in sentence["unreadable"]] == [str(path)]
    assert "1 journal left" in text
    assert "1 file left" in text
    path.unlink()
    assert whorl("compact", "--offline", "--store", store.root).exit_code == 0
