"""Advice for Kubernetes: labels and taints by the real `kubectl`, and the file for Node Feature Discovery."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.errors import InputError, SchedulerError
from whorl.jobs import kubernetes
from whorl.jobs.kubernetes import key
from whorl.tests.advised_fleet import write_store
from whorl.tests.jobs.kube_api import node, serving

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here")
KEY = "whorl.io/sgemm"
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_store(tmp_path_factory.mktemp("advised")))


def taint(effect: str, value: str = "avoid", name: str = KEY) -> dict[str, str]:
    return {"key": name, "value": value, "effect": effect}


@pytest.fixture
def nodes() -> dict[str, Any]:
    """A cluster that had other advice before: n03 and the unmeasured n77 are stale; n06 is not there."""
    cluster_nodes = [
        node("n01.site.example", {"kubernetes.io/hostname": "n01"}),
        node("n02", {"other": "stays"}, [taint("NoSchedule", "", "site")]),
        node("n03", {KEY: "exclude", "whorl.io/pagerank": "avoid"}, [taint("PreferNoSchedule", "exclude")]),
        node("n04", {}, [taint("NoSchedule")]),
        node("n05", {KEY: "prefer"}),
        node("n77", {KEY: "avoid"}, [taint("PreferNoSchedule")]),
    ]
    return {entry["metadata"]["name"]: entry for entry in cluster_nodes}


@pytest.fixture
def cluster(nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    with serving(nodes, tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setenv("HOME", str(tmp_path))  # kubectl keeps what it found there
        yield nodes


def advise(store: str, form: str, *options: str, stdin: str | None = None) -> Result:
    line = ["advise", "--store", store, "--workload", "sgemm", "--format", form, *options]
    return CliRunner().invoke(cli, line, input=stdin)


def labels(nodes: dict[str, Any]) -> dict[str, str]:
    return {
        name: entry["metadata"]["labels"][KEY] for name, entry in nodes.items() if KEY in entry["metadata"]["labels"]
    }


def taints(nodes: dict[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    return {
        name: sorted((t["key"], t.get("value", ""), t["effect"]) for t in entry["spec"].get("taints") or ())
        for name, entry in nodes.items()
    }


@needs_kubectl
@pytest.mark.long
def test_the_lines_bring_the_cluster_to_the_advice_and_then_there_are_none(store: str, cluster: dict[str, Any]) -> None:
    for form in ("kubernetes", "taints"):
        advice = advise(store, form)
        assert advice.exit_code == 0, advice.stderr
        subprocess.run(["sh", "-e"], input=advice.stdout, text=True, check=True, capture_output=True, timeout=60)
        again = advise(store, form)
        assert (again.exit_code, again.stdout) == (0, "")
        assert "the cluster already has these" in again.stderr
    assert labels(cluster) == {"n01.site.example": "prefer", "n02": "exclude", "n05": "avoid"}
    assert taints(cluster) == {
        "n01.site.example": [],
        "n02": [("site", "", "NoSchedule"), (KEY, "exclude", "PreferNoSchedule")],
        "n03": [],
        "n04": [(KEY, "avoid", "NoSchedule")],
        "n05": [(KEY, "avoid", "PreferNoSchedule")],
        "n77": [],
    }, "only whorl's own taint is changed; another effect is the site's decision"
    assert cluster["n02"]["metadata"]["labels"]["other"] == "stays"
    assert cluster["n03"]["metadata"]["labels"] == {"whorl.io/pagerank": "avoid"}


def test_without_kubectl_every_measured_node_gets_a_line(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = advise(store, "kubernetes")
    assert result.exit_code == 0
    assert "there is no `kubectl` here; every measured node gets a line" in result.stderr
    lines = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert sorted(word for line in lines for word in line.split() if re.fullmatch(r"n\d\d", word)) == [
        f"n0{i}" for i in range(1, 7)
    ]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'error: no such host' >&2; exit 1", "`kubectl get nodes` failed: error: no such host; give its nodes"),
        ("exec sleep 60", "the cluster did not answer `kubectl` within 0.2 s"),
        ("echo '{\"items\": []}'", "what `kubectl` printed has no nodes"),
        ("echo nonsense", "is not the output of `kubectl get nodes -o json`"),
    ],
)
def test_a_cluster_that_does_not_answer(
    script: str, sentence: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises((SchedulerError, InputError), match=re.escape(sentence)):
        kubernetes.ask(0.2)
    if "exit 1" in script:
        result = advise(store, "kubernetes")
        assert (result.exit_code, result.stdout) == (5, "")
        assert result.stderr.count("\n") == 1
        assert advise(store, "kubernetes", "--no-scheduler").exit_code == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not the output of `kubectl get nodes -o json`"),
        ('{"items": 3}', "it has no list of items"),
        ('{"items": [{"kind": "Pod", "metadata": {"name": "a"}}]}', "item 1 is no node"),
        ('{"items": [{"kind": "Node", "metadata": {"name": "-a"}}]}', "'-a' of item 1 cannot be the name of a node"),
        ('{"items": [{"kind": "Node", "metadata": {"name": "a"}, "spec": {"taints": [3]}}]}', "item 1 is no node"),
        ('{"items": []}', "has no nodes"),
    ],
)
def test_a_saved_list_that_is_none(store: str, text: str, sentence: str) -> None:
    result = advise(store, "kubernetes", "--nodes", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("whorl: standard input")
    assert sentence in result.stderr


@pytest.mark.parametrize("workload", ["gemm-fp32", "Üb er/300 W; rm -rf ~", "x" * 100, "_", "a" * 62 + "_b"])
def test_any_workload_makes_a_key_that_kubernetes_takes(workload: str) -> None:
    domain, _, name = key(workload).partition("/")
    assert domain == "whorl.io"
    assert LABEL.fullmatch(name)
    assert len(name) <= 63
    assert key("x" * 100) != key("x" * 101)


@pytest.mark.long
def test_the_file_for_node_feature_discovery(store: str, tmp_path: Path) -> None:
    for name in ("n02", "n02.site.example"):
        result = advise(store, "nfd", "--set", f"node={name}")
        assert result.exit_code == 0, result.stderr
        remark, expiry, label = result.stdout.splitlines()
        assert remark.startswith(f"# whorl: 'sgemm' on {name}: exclude; written 2")
        assert label == f"{KEY}=exclude"
        ends = dt.datetime.fromisoformat(expiry.removeprefix("# +expiry-time="))
        assert dt.timedelta(days=6.9) < ends - dt.datetime.now(dt.UTC) <= dt.timedelta(days=7)
    for name, note in (("n03", "it is neither slow nor one of the fastest"), ("n99", "was not measured on it")):
        path = tmp_path / "whorl-sgemm"
        result = advise(store, "nfd", "--set", f"node={name}", "--set", f"output={path}")
        assert (result.exit_code, result.stdout) == (0, "")
        assert note in result.stderr
        assert path.read_text().startswith(f"# whorl: 'sgemm' on {name}: no label; written 2")
        assert all(line.startswith("#") for line in path.read_text().splitlines())
    missing = advise(store, "nfd")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "--format nfd needs --set node=NAME" in missing.stderr
