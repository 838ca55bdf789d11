"""The published files: which is which, what is missing or double; the draws that rest on their every row; levels."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.replay.published import drawn_scores, levels, outlying, profiles
from whorl.errors import InputError
from whorl.tests.analysis.longhorn import FOLDER, needs_longhorn, raw

EXPS = ("resnet", "bert", "pagerank")


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def small(folder: Path, exp: str, *perf: float) -> Path:
    return write(folder / f"{exp}.csv", "exp,perf,uuid", *(f"{exp},{value},g" for value in perf))


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [small(tmp_path, exp, 10 + i, 12 + i, 11 + i) for i, exp in enumerate(EXPS)]


@needs_longhorn
def test_a_folder_as_published() -> None:
    profile_set = profiles([FOLDER])
    assert profile_set.notes == ()
    assert {name: times.size for name, times in profile_set.perf.items()} == {"A": 1404, "B": 1096, "C": 1096, "D": 880}
    assert profile_set.perf["A"][:2].tolist() == [419.4316536, 352.5439696]  # the rows' order, duplicates kept
    assert (profile_set.perf["B"] == profile_set.perf["C"]).all()
    for name, workload in (("A", "resnet50"), ("B", "bert"), ("D", "pagerank")):
        assert np.median(profile_set.relative()[name]) == pytest.approx(1)
        assert set(profile_set.perf[name]) == set(raw(workload)["perf"])


def test_which_is_which_is_read_from_the_files(three: list[Path]) -> None:
    """Names say nothing: the files are renamed in a circle."""
    a, b, d = three
    b.rename(b.with_name("x.csv"))
    a.rename(b)
    d.rename(a)
    profile_set = profiles([b, a, b.with_name("x.csv")])
    assert {name: times[0] for name, times in profile_set.perf.items()} == {"A": 10, "B": 11, "C": 11, "D": 12}


def test_a_file_given_twice_and_a_copy_count_once(three: list[Path], tmp_path: Path) -> None:
    """As the artifact lists BERT's file for two classes."""
    copy = tmp_path / "copy.csv"
    shutil.copy(three[1], copy)
    assert profiles([three[0], three[1], three[1], copy, three[2]]).perf["C"].tolist() == [11, 13, 12]


def test_other_files_of_a_folder_are_passed_over(three: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "workload-1.csv", "job_id,num_gpus", "0,1")
    write(tmp_path / "sgemm.csv", "exp,perf", "sgemm,5")
    write(tmp_path / "notes.csv", "a,b", "1")
    assert len(profiles([tmp_path]).perf) == 4
    with pytest.raises(
        InputError, match=r"workload-1.csv is not one of the published profiles: it has no column `exp`"
    ):
        profiles([*three, tmp_path / "workload-1.csv"])


def test_two_files_of_one_profile(three: list[Path], tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    with pytest.raises(InputError, match=r"bert.csv and .*other/bert.csv both have bert runs; give only one of them"):
        profiles([*three, small(other_folder, "bert", 1, 2)])


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [
        (0, "no profile of resnet runs was given, which class A of jobs needs; there is bert and pagerank in "),
        (1, "no profile of bert runs was given, which class B and C of jobs needs"),
        (slice(3), r"no profile of resnet and bert and pagerank runs .* there is none in no file at all"),
    ],
)
def test_a_class_without_a_profile(three: list[Path], left_out: int | slice, sentence: str) -> None:
    del three[left_out]
    with pytest.raises(InputError, match=sentence):
        profiles(three)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("exp,time", "resnet,3"), "resnet.csv has no column perf; it has exp, time"),
        (("exp,perf", "resnet,3", "resnet,fast"), "resnet.csv, line 3: perf is 'fast', which is not a finite number"),
        (("exp,perf", "resnet,"), "resnet.csv, line 2: perf is '', which is not a finite number"),
        (("exp,perf", "resnet,-1"), "resnet.csv, line 2: perf is -1; it must be above 0"),
        (("exp,perf", "resnet,1", "resnet,2", "resnet"), "resnet.csv, line 4: 1 field where 2 are expected"),
        (("exp,perf", "resnet,1", "bert,2"), "resnet.csv is not one of the published profiles"),
        (("exp,perf",), "resnet.csv has no rows"),
    ],
)
def test_a_bad_profile(three: list[Path], lines: tuple[str, ...], sentence: str) -> None:
    write(three[0], *lines)
    with pytest.raises(InputError, match=sentence):
        profiles(three)


def test_a_draw_depends_on_the_order_of_the_rows(three: list[Path]) -> None:
    relative = profiles(three).relative()
    scores, generator = drawn_scores(relative, 5, 42)
    turned, _ = drawn_scores({name: rows[::-1] for name, rows in relative.items()}, 5, 42)
    assert all(set(scores[name]) <= set(relative[name]) for name in "ABCD")
    assert any((scores[name] != turned[name]).any() for name in "ABCD")
    assert generator.random() == drawn_scores(relative, 5, 42)[1].random()


def test_an_outlier_gets_a_further_level() -> None:
    """Worked by hand: 62 GPUs at 0.99 and 1.01, one at 2; mean 1.0154, sd 0.126, so the limit is 1.39."""
    scores = np.array([0.99] * 31 + [1.01] * 31 + [2.0])
    assert np.flatnonzero(outlying(scores)).tolist() == [62]
    assert levels(scores) == pytest.approx([0.99 / 1.01] * 31 + [1.0] * 31 + [2.0 / 1.01])
    assert not outlying(scores[:62]).any()
    assert levels(scores[:62]) == pytest.approx(scores[:62])  # over the mean of both levels, the median of two
    assert levels(np.full(8, 1.07)).tolist() == [1.0] * 8
