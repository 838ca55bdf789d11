"""One GPU, one name; one workload, one name: what a person may say, and what it means."""

from __future__ import annotations

import polars as pl
import pytest

from whorl.analysis.by_number import by_number as in_frames
from whorl.errors import InputError
from whorl.store.names import by_number, find_gpu, find_workload

GPUS = {"GPU-1a2b": ("c1/0", "0"), "GPU-1a3c": ("c1/1", "1"), "GPU-77c1": ("c2/10", "10")}


@pytest.mark.parametrize(
    ("said", "gpu"),
    [("c1/1", "GPU-1a3c"), ("0", "GPU-1a2b"), ("1", "GPU-1a3c"), ("C2", "GPU-77c1"), ("gpu-1a2b", "GPU-1a2b")],
)
def test_a_gpu_is_found_by_its_name_its_uuid_its_index_or_a_part(said: str, gpu: str) -> None:
    assert find_gpu(said, GPUS) == gpu


@pytest.mark.parametrize(
    ("said", "gpus", "why"),
    [
        ("1a", GPUS, "'1a' fits 2 GPUs: c1/0 (GPU-1a2b), c1/1 (GPU-1a3c); give more of the name"),
        ("c3/0", GPUS, "there is no GPU 'c3/0' here; there is c1/0 (GPU-1a2b), c1/1 (GPU-1a3c), c2/10 (GPU-77c1)"),
        ("7", GPUS, "there is no GPU '7' here; "),  # one sign is an index, not a part
        ("", GPUS, "there is no GPU '' here; "),
        # as people count, whatever order they come in; of many a few
        ("n/", {f"GPU-{n}": (f"n/{n}",) for n in (10, 2, 1)}, "'n/' fits 3 GPUs: n/1 (GPU-1), n/2 (GPU-2), n/10"),
        ("gpu", {f"GPU-{n:04}": (f"n/{n}",) for n in range(1000)}, "'gpu' fits 1000 GPUs: n/0 (GPU-0000), n/1"),
    ],
)
def test_a_name_that_fits_none_or_several_is_a_sentence_with_those_there_are(
    said: str, gpus: dict[str, tuple[str, ...]], why: str
) -> None:
    with pytest.raises(InputError) as refused:
        find_gpu(said, gpus)
    assert str(refused.value).startswith(why)
    assert len(str(refused.value)) < 300


def test_the_names_of_sgemm_are_one() -> None:
    for said in ("gemm-fp32", "sgemm", "gemm"):
        assert find_workload(said, ["sgemm", "pagerank"]) == "sgemm"
        assert find_workload(said, ["gemm-fp32", "gemm-fp16"]) == "gemm-fp32"
    assert find_workload("sgemm", ["sgemm", "gemm-fp32"]) == "sgemm"  # an exact name is that
    assert find_workload("stream", ["sgemm"]) == "stream"
    with pytest.raises(InputError, match="no runs of gemm, but of gemm-fp32 and of sgemm"):
        find_workload("gemm", ["sgemm", "gemm-fp32"])


def test_a_kind_of_a_workload_is_named_as_it_is_printed() -> None:
    kinds = ["sgemm [A100, 250 W]", "sgemm [A100, 300 W]", "copy [A100]"]
    for said in ("sgemm [A100, 250 W]", "gemm [A100, 250 W]"):
        assert find_workload(said, kinds) == "sgemm [A100, 250 W]"
    assert find_workload("copy", kinds) == "copy [A100]"  # the only one
    assert find_workload("sgemm", [*kinds, "sgemm"]) == "sgemm"
    assert find_workload("sgemm [V100]", kinds) == "sgemm [V100]"
    with pytest.raises(InputError, match=r'choose one of "sgemm \[A100, 250 W\]", "sgemm \[A100, 300 W\]"'):
        find_workload("gemm", kinds)


def test_names_are_sorted_as_people_count_alike_in_lists_and_in_frames() -> None:
    names = [
        "c2-10/0", "c2-2/1", "c2-2/0", "c10-1/0", "c2-1/3", "gpu-node-007", "gpu-node-7", "gpu-node-10", "n", "12",
        "GPU-10", "GPU-2",
    ]  # fmt: skip
    counted = sorted(names, key=by_number)
    assert counted == [
        "12", "GPU-10", "GPU-2", "c2-1/3", "c2-2/0", "c2-2/1", "c2-10/0", "c10-1/0",
        "gpu-node-007", "gpu-node-7", "gpu-node-10", "n",
    ]  # fmt: skip
    frame = pl.DataFrame({"name": [None, *sorted(names)]})
    assert frame.sort(in_frames("name"), nulls_last=True)["name"].to_list() == [*counted, None]
