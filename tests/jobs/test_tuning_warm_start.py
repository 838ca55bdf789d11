"""What a search begins with: another model's runs of the same probe, or a file of a sweep."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.stores import new_store
from whorl.analysis.tuning.search import Knob, Search, TimeBound
from whorl.cli.answers.measuring import measure
from whorl.errors import InputError
from whorl.jobs.tuning import TuneLog, TuneStep, prior_from

LIMITS = Knob("power_limit_w", tuple(np.arange(100.0, 301.0, 25.0).tolist()), 300.0)
BATCH = Knob("batch", (8.0, 16.0, 32.0, 64.0), 16.0)


def time_s(share: float, batch: float) -> float:
    """Of a made workload under a limit, as a share of the highest."""
    return (1 + max(0.0, 0.7 - share)) * (2 + batch) / 100


def energy_j(share: float, batch: float) -> float:
    return time_s(share, batch) * min(share, 0.7) * 250 / batch


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two networks on a GPU with limits from 100 to 250 W, each with three batch sizes."""
    lines = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for network, factor in (("resnet", 1.0), ("bert", 3.0)):
        for batch in (8, 16, 32):
            for limit in range(100, 251, 25):
                seconds, joules = time_s(limit / 250, batch) * factor, energy_j(limit / 250, batch) * factor
                lines.append(f"images,{network},{batch},adam,{limit},{seconds},{joules / seconds}")
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_prior_is_the_other_models_surface_by_shares_of_the_limit(sweep: Path) -> None:
    prior = prior_from(f"{sweep}:network=resnet", [LIMITS, BATCH], probe=None, store=None)
    places = np.array([(1.0, 1 / 3), (0.5, 1 / 3), (0.25, 0.0), (1.0, 1.0)])  # batch 64 was not measured: as 32
    settings = [(300.0, 16.0), (200.0, 16.0), (150.0, 8.0), (300.0, 32.0)]
    energy, time = prior(places)
    for figure, truth in ((energy, energy_j), (time, time_s)):
        expected = np.log([truth(limit / 300, batch) for limit, batch in settings])
        assert figure - figure[0] == pytest.approx(expected - expected[0], abs=0.03)


def test_a_search_with_a_prior_of_the_truth_needs_four_trials(sweep: Path) -> None:
    prior = prior_from(f"{sweep}:network=resnet,batch=16", [LIMITS], probe=None, store=None)
    search = Search([LIMITS], TimeBound(max_slowdown=0.2), prior=prior)
    for _ in range(4):
        setting = search.suggest()
        assert setting is not None
        share = setting["power_limit_w"] / 300
        search.tell(setting, energy_j(share, 16), time_s(share, 16))
    within = [limit for limit in LIMITS.values if time_s(limit / 300, 16) <= 0.98 * 1.2 * time_s(1.0, 16)]
    least = min(within, key=lambda limit: energy_j(limit / 300, 16))
    assert search.answer() == {"power_limit_w": least}


def test_runs_of_a_store_on_another_model_are_a_prior(tmp_path: Path) -> None:
    for limit_w in (None, 200, 150):
        measure(tmp_path / "s", "gemm-fp32", backend="simulated", suite="quick", gpus=1, power_limit=limit_w)
    prior = prior_from("v100", [LIMITS], probe="gemm-fp32", store=tmp_path / "s")
    energy, time = prior(np.array([[1.0], [0.75], [0.5]]))  # 300, 250 and 200 W; 250, 208 and 167 W of a V100
    assert energy[0] > energy[1] > energy[2]
    assert time[0] < time[1] < time[2]
    assert time[0] == pytest.approx(0.0, abs=0.01)  # relative to the default of each GPU
    assert math.exp(float(time[2])) < 1.5


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{sweep}", "has 6 sweeps: choose one workload"),
        ("{sweep}:network=resnet", "warm-start={sweep}:batch=8,dataset=images,network=resnet,optimizer=adam"),
        ("{sweep}:network=vgg", "has 0 sweeps with network=vgg"),
        ("{log}", "cannot be read as a log of whorl tune"),
        ("{other}", "is the log of a search for stream-triad, and not for gemm-fp32"),
        ("H100", "H100 is no file, and {store} has no runs of gemm-fp32 on a model with H100 in its name"),
    ],
)
def test_a_source_of_no_use_is_refused_with_a_sentence(sweep: Path, tmp_path: Path, source: str, sentence: str) -> None:
    log = tmp_path / "trials.jsonl"
    log.write_text('{"schema": "whorl.tune.log/1"}\n{"stage": "trial"}\n')
    other, store = tmp_path / "other.jsonl", tmp_path / "s"
    other.write_text('{"schema": "whorl.tune.log/1", "label": "stream-triad"}\n')
    source = source.format(sweep=sweep, log=log, other=other)
    with pytest.raises(InputError) as refused:
        prior_from(source, [LIMITS], probe="gemm-fp32", store=new_store(store))
    assert sentence.format(sweep=sweep, store=store) in str(refused.value)


def test_the_log_of_a_search_is_a_prior_without_what_failed_or_was_torn(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    with TuneLog(log, {}) as writer:
        for limit_w in (300.0, 250.0, 200.0, 150.0):
            share = limit_w / 300
            figures = (energy_j(share, 16), time_s(share, 16))
            writer.append(TuneStep({"power_limit_w": limit_w}, *figures, stage="trial", gpu="g"))
        writer.append(TuneStep({"power_limit_w": 100.0}, stage="trial", gpu="g", failure="it could not run"))
    with log.open("a") as file:
        file.write('{"stage": "tri')
    energy, time = prior_from(str(log), [LIMITS], probe=None, store=None)(np.array([[1.0], [0.25]]))  # 300 and 150 W
    assert energy[1] - energy[0] == pytest.approx(math.log(energy_j(0.5, 16) / energy_j(1.0, 16)), abs=0.03)
    assert time[1] - time[0] == pytest.approx(math.log(time_s(0.5, 16) / time_s(1.0, 16)), abs=0.03)


def test_a_model_needs_a_probe_and_a_store_and_knobs_must_be_those_of_the_sweep(sweep: Path) -> None:
    with pytest.raises(InputError, match="needs a probe and a store"):
        prior_from("H100", [LIMITS], probe=None, store=None)
    threads = Knob("threads", (1.0, 2.0), 1.0)
    with pytest.raises(InputError, match="varies none of the knobs threads"):
        prior_from(f"{sweep}:network=resnet,batch=8", [threads], probe=None, store=None)
