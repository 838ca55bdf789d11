"""The wheel holds what its commands and messages name: somebody who installed it has no clone beside it."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.long  # to build it takes seconds
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of the wheel, built from a copy of what git tracks, without a network: name -> text."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("this is no clone: git cannot list its files")
    for name in listed.stdout.rstrip("\0").split("\0"):
        if not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=folder / "tree", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return {
            name: archive.read(name).decode(errors="replace") for name in archive.namelist() if not name.endswith("/")
        }


def test_every_page_and_script_that_the_code_names_is_in_the_wheel(wheel: dict[str, str]) -> None:
    package_names = {
        (page, name)
        for name, text in wheel.items()
        if name.endswith(".py")
        for page in re.findall(r"\bdocs/[\w/.-]*\w", text)
    }
    assert {page for page, _ in package_names} >= {"docs/tutorial.md", "docs/cli.md", "docs/campaigns.md"}
    wheel_names = {name.removeprefix("whorl/") for name in wheel}
    assert not {
        (page, name)
        for page, name in package_names
        if page not in wheel_names and f"{page}/README.md" not in wheel_names
    }
    assert {"docs/slurm/cli_filter.lua", "docs/slurm/job_submit.lua", "docs/tables.md"} <= wheel_names


def test_every_file_beside_the_code_is_in_the_wheel(wheel: dict[str, str]) -> None:
    rooms = {name.split("/")[1] for name in wheel if name.startswith("whorl/") and name.endswith(".py")}
    rooms -= {name for name in rooms if not (ROOT / name).is_dir()}
    tracked = subprocess.run(["git", "ls-files", *sorted(rooms)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "jobs/chain.sh" in tracked.stdout.split()
    assert not {name for name in tracked.stdout.splitlines() if f"whorl/{name}" not in wheel}


def test_the_links_of_the_shipped_pages_lead_to_shipped_pages(wheel: dict[str, str]) -> None:
    """But for those of CONTRIBUTING.md to tests: who reads it has a clone."""
    dead = []
    for name in (name for name in wheel if name.startswith("whorl/") and name.endswith(".md")):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", wheel[name]):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
            if not link.startswith(("http", "tests/")) and target not in wheel and f"{target}/README.md" not in wheel:
                dead.append((name, link))
    assert not dead


def test_the_wheel_has_no_tests_and_every_source_template_and_table(wheel: dict[str, str]) -> None:
    assert not [name for name in wheel if name.startswith(("tests/", "whorl/tests/", "whorl/benchmarks/"))]
    sources = {f"whorl/kernels/{path.name}" for path in (ROOT / "kernels").glob("*.cu*")}
    templates = {f"whorl/jobs/templates/{path.name}" for path in (ROOT / "jobs" / "templates").iterdir()}
    data_files = {f"whorl/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "analysis").rglob("*.csv")}
    assert sources | templates | data_files <= wheel.keys()
    assert "whorl/py.typed" in wheel
