"""What boards' sensors are wrong by: from measured boards, by model, and learnt from the power of nodes."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import scipy.special

from whorl.analysis.energy.calibration import BoardErrors
from whorl.store.power_sensors import MEASURED_BOARDS, NORMAL_95, SENSOR_ERROR, SensorError

LOADS_W = (30.0, 100.0, 200.0, 300.0, 400.0)


def solved(gain_pct: float, offset_w: float) -> tuple[float, float]:
    return 1 / (1 + gain_pct / 100) - 1, -offset_w / (1 + gain_pct / 100)


@pytest.mark.parametrize("whole_model", [False, True])
def test_boards_that_are_left_out_lie_inside_what_the_others_let_expect(whole_model: bool) -> None:
    """Leave one board, and leave one model out: intervals of the power at several loads hold 17 of 19 or more."""
    quantile = float(scipy.special.stdtrit(len(MEASURED_BOARDS) - 1, 0.975))
    assert SENSOR_ERROR.quantile == pytest.approx(quantile, abs=1e-6)
    held = dict.fromkeys(LOADS_W, 0)
    for at, (model, gain_pct, offset_w) in enumerate(MEASURED_BOARDS):
        others = [
            board for place, board in enumerate(MEASURED_BOARDS) if (board[0] != model if whole_model else place != at)
        ]
        known = SensorError.of_model(model, others, float(scipy.special.stdtrit(len(others) - 1, 0.975)))
        h, p = solved(gain_pct, offset_w)
        for watts in LOADS_W:
            joules, seconds = np.array(watts), np.array(1.0)
            over = known.variance(joules, seconds)
            low, high = known.ends(joules, seconds, over)
            held[watts] += int(low <= h * watts + p <= high)
    assert min(held.values()) >= 17, held
    assert sum(held.values()) >= 0.94 * len(MEASURED_BOARDS) * len(LOADS_W), held


def test_a_board_of_a_measured_model_is_known_better_and_has_the_mean_of_its_model() -> None:
    watts, second = np.array(300.0), np.array(1.0)
    many, few, none = (
        SensorError.of_model(model) for model in ("NVIDIA GeForce RTX 3090", "NVIDIA A100-PCIE-40GB", "NVIDIA H100")
    )
    assert many.unknown(watts, second) < few.unknown(watts, second) < none.unknown(watts, second)
    assert [one.source.value for one in (many, few, none)] == ["model", "model", "population"]
    assert none == SENSOR_ERROR
    assert few.mean[0] > none.mean[0]  # that A100 read 4.6 % too little


@pytest.mark.parametrize(
    ("product", "measured"),
    [
        ("NVIDIA GeForce RTX 3090", True),
        ("NVIDIA GeForce RTX 3090 Ti", False),
        ("Tesla P100-PCIE-16GB", True),
        ("Tesla P100-SXM2-16GB", False),
        ("NVIDIA A100-SXM4-40GB", False),
        ("NVIDIA TITAN X (Pascal)", True),
        ("Tesla K40m", True),
        ("", False),
    ],
)
def test_only_boards_of_the_very_model_count_as_its_boards(product: str, measured: bool) -> None:
    assert (SensorError.of_model(product).source.value == "model") == measured


def test_errors_add_up_as_those_of_one_sensor_and_shared_parts_do_not_average_out() -> None:
    rng = np.random.default_rng(1)
    gpus = [f"GPU-{number}" for number in range(40)]
    read = pl.DataFrame(
        {
            "job": ["a"] * 20 + ["b"] * 20,
            "cluster": "c",
            "gpu": gpus,
            "sensed_j": rng.uniform(1e4, 3e4, 40),
            "sensed_s": 100.0,
        }
    )
    alike = BoardErrors.alike(SENSOR_ERROR)
    joules, seconds = (read[name].to_numpy() for name in ("sensed_j", "sensed_s"))
    low, high = SENSOR_ERROR.ends(joules.sum(), seconds.sum(), SENSOR_ERROR.variance(joules, seconds).sum())
    whole = alike.added(read, []).row(0, named=True)
    assert whole["error_j"] == pytest.approx((low + high) / 2)
    assert NORMAL_95 * math.sqrt(whole["board_j2"]) == pytest.approx((high - low) / 2)
    by_model = BoardErrors.of_models([("c", gpu, "NVIDIA H100") for gpu in gpus])
    assert by_model.added(read, []).row(0) == pytest.approx(alike.added(read, []).row(0))
    jobs = by_model.added(read, ["job"])
    assert jobs["job"].to_list() == ["a", "b"]
    # Jobs on other boards of the model are wrong together: the sum is known hardly better than either, in per cent.
    assert math.sqrt(whole["board_j2"]) > 0.95 * sum(map(math.sqrt, jobs["board_j2"]))
    # Two models are not.
    two = BoardErrors.of_models([("c", gpu, "H100" if at < 20 else "B200") for at, gpu in enumerate(gpus)])
    assert math.sqrt(two.added(read, [])["board_j2"][0]) < 0.8 * sum(map(math.sqrt, jobs["board_j2"]))
