"""Pages of exporters as text: lines, what names and labels mean, and numbers that are none."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.store.exposition import gpus, text
from whorl.store.metrics import METRICS
from whorl.tests.checks import not_none
from whorl.tests.sizes import count


def _samples(page: str) -> list[text.Sample]:
    return [line for line in text.lines(page) if isinstance(line, text.Sample)]


def _damage(page: str) -> list[text.Damage]:
    return [line for line in text.lines(page) if isinstance(line, text.Damage)]


LINES = {  # value, time stamp (ns)
    "a 1.5": (1.5, None),
    '  a{b="c",} -2 \r': (-2, None),
    "a{} 9223372036854775794": (9223372036854775794, None),  # exactly, unlike a float
    "a +Inf": (math.inf, None),
    "a 1.4e+08 1700000000123": (1.4e8, 1700000000123 * 10**6),
    "a 1 1700000000.123456789": (1, 1700000000123456789),  # OpenMetrics has seconds
    'a_total{b="}"} 4 # {trace="x"} 3 1700000000.5': (4, None),
    '{"a.b", c="d"}4': (4, None),
    'DCGM_FI_DEV_NAME{gpu="0"} Tesla T4': (None, None),  # a text as value is no damage
}
DAMAGED = {
    'a{gpu="0" 12': "its labels have no end",
    'a{gpu="0': "its labels have no end",
    "a{gpu=0} 12": "its labels cannot be read from 'gpu=0' on",
    'a{gpu="0"}': "it has no value",
    "a 1 2 3": "it has more than a value and a time stamp",
    "a 1 yesterday": "'yesterday' is no time stamp",
    "a 1 NaN": "'NaN' is no time stamp",
    "a 1 1e-99999999999999999999": "'1e-99999999999999999999' is no time stamp",
    "=a 1": "it does not begin with the name of a metric",
    "<html>": "it does not begin with the name of a metric",
}


def test_a_line_has_a_value_and_a_time_stamp_and_a_damaged_one_costs_only_itself() -> None:
    for line, expected in LINES.items():
        (sample,) = _samples(line)
        assert (sample.value, sample.stamp_ns) == expected, line
    for line, why in DAMAGED.items():
        page = f"a 1\n{line}\n\nb 2\n"
        assert _damage(page) == [text.Damage(2, why)]
        assert [sample.line for sample in _samples(page)] == [1, 4]


def test_labels_are_unescaped_and_one_may_be_the_name() -> None:
    (sample,) = _samples(r'{__name__="a", one="b\"c\\d\ne", two = "} # 5"} 1')
    assert sample.series == text.Series("a", {"one": 'b"c\\d\ne', "two": "} # 5"})


def test_line_of_very_many_labels_is_read() -> None:
    """In one pass over the line, not in one for each label."""
    (sample,) = _samples("a{" + ",".join(f'l{number}="{number}"' for number in range(150_000)) + "} 1")
    assert len(sample.series.labels) == 150_000
    (damage,) = _damage('a{x="' + "\\" * 1_000_001 + '"} 1')
    assert damage.why == "its labels have no end"


_NAMES = st.text(string.ascii_letters + "_:", min_size=1, max_size=8)
_LABELS = st.dictionaries(
    st.text(string.ascii_letters + "_", min_size=1, max_size=6).filter(lambda name: not name.startswith("__")),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8),
    max_size=4,
)


@settings(max_examples=count(800, short=40))
@given(
    name=_NAMES,
    labels=_LABELS,
    value=st.one_of(st.integers(), st.floats()),
    stamp=st.none() | st.integers(0, 8 * 10**12),
)
def test_agrees_with_the_parser_of_prometheus_client(
    name: str, labels: dict[str, str], value: float, stamp: int | None
) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client")
    inside = ",".join(f'{key}="{text_.translate(_ESCAPES)}"' for key, text_ in labels.items())
    line = f"{name}{{{inside}}} {value!r}" + ("" if stamp is None else f" {10**12 + stamp}")
    (theirs,) = next(iter(parser.text_string_to_metric_families(line + "\n"))).samples
    (ours,) = _samples(line)
    assert (ours.series.name, ours.series.labels) == (theirs.name, theirs.labels)
    assert float(not_none(ours.value)) == float(theirs.value) or math.isnan(theirs.value)
    if stamp is not None:
        assert ours.stamp_ns == (10**12 + stamp) * 10**6


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


# -- names, labels, numbers ---------------------------------------------------------------------------------


def test_every_name_of_a_metric_is_known() -> None:
    names = {name: metric.name for metric in METRICS for name in metric.prometheus}
    names |= {
        "dcgm_fi_prof_sm_active": "sm_active_ppm",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total": "energy_mj",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": "power_violation_ns",
    }
    columns = {name: column for name in names if (column := gpus.column(name)) is not None}
    assert {name: column.metric.name for name, column in columns.items()} == names


def test_labels_say_who_the_gpu_is() -> None:
    labels = {
        "gpu": "3", "UUID": "GPU-ABCDEF01-1111-2222-3333-444444444444", "modelName": "NVIDIA H100", "Hostname": "n7",
        "instance": "10.0.0.1:9400", "pci_bus_id": "00000000:07:00.0", "DCGM_FI_DRIVER_VERSION": "580.1",
        "DCGM_FI_DEV_SERIAL": "132", "pod": "train-0",
    }  # fmt: skip
    assert gpus.whose(labels) == gpus.Whose("GPU-abcdef01-1111-2222-3333-444444444444", None)
    assert gpus.described(labels) == {
        "model": "NVIDIA H100", "serial": "132", "driver": "580.1", "pci_bus_id": "00000000:07:00.0", "node": "n7",
        "slot": 3,
    }  # fmt: skip
    assert gpus.whose({"gpu": "0"}) is None
    assert gpus.whose({"gpu_uuid": "GPU-1", "nvlink": "2"}) is None
    assert gpus.whose({"gpu_uuid": "GPU-1", "GPU_I_ID": "5"}) == gpus.Whose("GPU-1", "5")


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"hostname": "n1", "Hostname": ""}, "n1"),
        ({"kubernetes_node": "n2", "instance": "10.0.0.1:9400"}, "n2"),
        ({"instance": "n3.site.org:9400"}, "n3.site.org"),
        ({"instance": "[fd00::1]:9400"}, "fd00::1"),
        ({"Hostname": "dcgm-exporter-lcxpl", "node": "n4"}, "n4"),
        ({"Hostname": "nvidia-dcgm-exporter-lcxpl"}, None),
        ({"Hostname": "ed7e7a5e585f"}, None),
    ],
)
def test_node_is_in_one_of_several_labels(labels: dict[str, str], node: str | None) -> None:
    assert gpus.described(labels).get("node") == node


@pytest.mark.parametrize(
    ("name", "number", "scaled"),
    [
        ("DCGM_FI_DEV_POWER_USAGE", 155.342, (155342, "")),
        ("DCGM_FI_DEV_FB_USED", 2, (2 << 20, "")),
        ("DCGM_FI_PROF_SM_ACTIVE", 0.25, (250_000, "")),
        ("DCGM_FI_PROF_SM_ACTIVE", 25.0, (None, "impossible")),  # a share in %: no exporter prints that
        ("DCGM_FI_DEV_POWER_USAGE", 155_342, (None, "impossible")),  # mW
        ("DCGM_FI_DEV_GPU_TEMP", 0x7FFFFFFFFFFFFFF0, (None, "blank")),
        ("DCGM_FI_DEV_GPU_TEMP", 0x7FFFFFFFFFFFFFF1, (None, "unsupported")),
        ("DCGM_FI_DEV_GPU_TEMP", 0x7FFFFFFFFFFFFFF3, (None, "denied")),
        ("DCGM_FI_DEV_GPU_TEMP", 9.223372036854775807e18, (None, "blank")),  # after a Prometheus
        ("DCGM_FI_DEV_GPU_TEMP", 0x7FFFFFF2, (None, "unsupported")),
        ("DCGM_FI_DEV_POWER_USAGE", 140737488355328.0, (None, "blank")),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0x7FFFFFF2, (0x7FFFFFF2, "")),  # a counter may pass there
        ("DCGM_FI_DEV_POWER_VIOLATION", 1 << 50, (1 << 50, "")),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 9.223372036854775807e18, (None, "blank")),
        ("DCGM_FI_DEV_POWER_USAGE", math.nan, (None, "no number")),
        ("DCGM_FI_DEV_POWER_USAGE", None, (None, "no number")),
    ],
)
def test_number_becomes_the_metrics_unit_or_says_why_it_is_none(
    name: str, number: float | None, scaled: tuple[int | None, str]
) -> None:
    column = gpus.column(name)
    assert gpus.scaled(number, not_none(column)) == scaled
