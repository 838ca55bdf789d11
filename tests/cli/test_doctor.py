"""`whorl doctor`: what works, why what does not, and every file of a store."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from whorl import cli as command_line
from whorl.cli.answers import doctor
from whorl.jobs import node_doctor
from whorl.jobs.node_doctor import NodeFinding, cupy_finding, node_findings
from whorl.store import Store
from whorl.tests.cli import calling
from whorl.tests.probed_fleet import stored
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store
from whorl.tests.without import COMMAND, NODE, run_without


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """No CuPy and no DCGM: they are asked in processes of their own, and most of these tests are not about them."""
    monkeypatch.setenv("WHORL_PYDCGM_PATH", "/nowhere")
    monkeypatch.setattr(doctor, "cupy_finding", lambda: NodeFinding("CuPy", False, "not looked for", "GPU kernels"))


def whorl(*words: object) -> Result:
    return calling.whorl("doctor", *words, WHORL_STORE="")


def findings(*words: object, status: int = 0) -> dict[str, dict[str, Any]]:
    """The findings by what they are about; of several about the same, the first."""
    result = whorl("--json", *words)
    assert result.exit_code == status, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "whorl.doctor/1"
    return {finding["what"]: finding for finding in reversed(document["findings"])}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    new = new_store(tmp_path / "s")
    new.append({"runs": pa.table({"run_id": [f"r{i}" for i in range(1000)]})}, "x")
    return new


def test_a_missing_package_that_everything_needs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "pyarrow":
            raise metadata.PackageNotFoundError
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    result = whorl()
    assert result.exit_code == 1
    assert "pip install pyarrow" in result.stdout


@pytest.mark.parametrize("kind", sample(["flipped", "torn", "blank"], short=1))
def test_an_unsound_file_is_named(store: Store, kind: str) -> None:
    (path,) = (store.root / "runs").glob("x.*.parquet")
    content = path.read_bytes()
    damaged = {
        "torn": content[:-20],
        "flipped": content[:500] + bytes([content[500] ^ 1]) + content[501:],
        "blank": content[:4] + bytes(2000) + content[2004:],
    }
    path.write_bytes(damaged[kind])
    finding = findings("--store", store.root, status=1)["store file"]
    assert (finding["works"], finding["detail"].startswith(f"{path}: ")) == (False, True)


@pytest.mark.long
def test_a_store_that_lost_its_runs_says_so_and_does_not_ask_for_more(tmp_path: Path) -> None:
    damaged = stored(tmp_path / "S", 8, telemetry=False)[0].root
    lost = shutil.copytree(damaged, tmp_path / "lost")
    for path in set((damaged / "runs").rglob("*.parquet")) - {damaged / "runs" / "_schema.parquet"}:
        path.write_bytes(b"PAR1")
    shutil.rmtree(lost / "runs")
    for store, sentence in ((damaged, "skipped, see the warnings"), (lost, "its folder runs has no runs")):
        for verb in ("verdicts", "verdicts variability"):
            done = calling.whorl(verb, "--store", store)
            assert (done.exit_code, sentence in done.stderr, "whorl import" in done.stderr) == (2, True, False), verb
    shutil.rmtree(lost / "gpus")
    done = whorl("--json", "--store", lost)
    wrong = [finding for finding in json.loads(done.stdout)["findings"] if finding["what"] == "store table"]
    assert done.exit_code == 1
    assert [finding["detail"].partition(":")[0] for finding in wrong] == [str(lost / "gpus"), str(lost / "runs")]


def test_no_store_is_a_finding(tmp_path: Path) -> None:
    finding = findings("--store", tmp_path / "nowhere", status=1)["store"]
    assert "is not a store (it does not exist)" in finding["detail"]
    (row,) = [row for row in node_findings(tmp_path / "nowhere") if row.what == "store"]
    assert (row.works, row.vital) == (False, True)


CUPY = """
__version__ = "14.0.1"
class cuda:
    class runtime:
        class CUDARuntimeError(RuntimeError): status = 35
        runtimeGetVersion = staticmethod(lambda: {built})
        driverGetVersion = staticmethod(lambda: {driver})
        @classmethod
        def getDeviceCount(cls):
            {count}
"""


def cupy(**names: object) -> str:
    """A CuPy whose runtime says this."""
    return CUPY.format(**({"driver": 12090, "built": 12090, "count": "return 4"} | names))


OLD = "14.0.1: CuPy is built for CUDA 12.9, but the driver supports CUDA 11.8 at most: install a newer driver"
NO_FOLDER = "FileNotFoundError(2, 'No such file or directory', '/nowhere/.cupy')"  # CuPy 14 makes its folder at once


@pytest.mark.long(short=3)
@pytest.mark.parametrize(
    ("module", "works", "words"),
    [
        (cupy(driver=13000), True, "14.0.1 for CUDA 12.9, driver for 13.0, 4 GPUs"),
        (cupy(driver=12040), True, "driver for 12.4"),
        (cupy(driver=11080, count="raise cls.CUDARuntimeError('old')"), False, OLD),
        (cupy(count="raise ImportError('libcudart.so.12: not found')"), False, "libcudart.so.12: not found"),
        (cupy(count="__import__('os').abort()"), False, "status -6"),
        (f"raise {NO_FOLDER}", False, "CuPy cannot keep in /nowhere/.cupy what it compiles: No such file or directory"),
        ("raise OSError('libcuda.so.1: wrong ELF class')", False, "CuPy cannot be loaded: libcuda.so.1: wrong ELF"),
    ],
)
def test_cupy_and_its_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, works: bool, words: str
) -> None:
    (tmp_path / "cupy.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = cupy_finding()
    assert (answer.works, words in answer.detail) == (works, True), answer.detail


def test_without_cupy_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_doctor, "find_spec", lambda name: None)
    assert "pip install 'whorl[cuda13]', or 'whorl[cuda12]'" in cupy_finding().detail


def test_settings_and_who_may_change_them(state: Path) -> None:
    answer = findings()
    assert answer["settings of GPUs"]["detail"] == "nothing to restore"
    assert not state.exists()
    assert "CAP_SYS_ADMIN" in answer["changing settings of GPUs"]["detail"]
    state.mkdir()
    (state / "restore-GPU-1.json").write_text("{")
    finding = findings()["settings of GPUs"]  # reading GPUs goes on all the same
    assert (finding["works"], "cannot be used" in finding["detail"]) == (False, True)


@pytest.mark.long
def test_a_node_without_the_packages_of_the_analysis_says_what_it_sees(tmp_path: Path) -> None:
    done = run_without(NODE, COMMAND, *doctor_here(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sees_store(done.stdout)


def test_a_node_says_what_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    done = calling.whorl(*doctor_here(tmp_path))
    assert done.exit_code == 0, done.output
    assert sees_store(done.stdout)


def doctor_here(folder: Path) -> list[str]:
    new_store(folder / "S")
    (folder / "fleet.toml").write_text('cluster = "c"\nnodes = "n1"\n')
    return ["campaign", "doctor", "--here", "--store", str(folder / "S"), "--set", f"fleet={folder / 'fleet.toml'}"]


def sees_store(printed: str) -> bool:
    """Whether the store works for the node, and the GPUs are not named without Slurm."""
    findings = {finding["what"]: finding for finding in json.loads(printed)["findings"]}
    return bool(findings["store"]["works"]) and "SLURMD_NODENAME is not set" in findings["GPUs"]["detail"]


def test_each_package_that_whorl_needs_is_named_in_a_sentence_where_it_is_missing() -> None:
    """The table of the command line has what pip calls each of them; without a row a missing one is a traceback."""
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[^\w-]", requirement)[0] for requirement in project["dependencies"]} - {"click"}
    assert needed <= set(command_line._DEPENDENCIES.values())
    assert {"scipy", "scikit-learn", "ClusterShell"} <= findings().keys()
