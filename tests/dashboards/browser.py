"""A page in a real browser, without a window and without a network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium or chrome on this machine")


def rendered(page: Path, profile: Path, *flags: str, width: int = 1280, height: int = 6000, wait_s: float = 20) -> str:
    """The page's document so long after it was loaded; a name that resolves to no address makes every request fail."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"),
            *(f"--user-data-dir={profile}", f"--window-size={width},{height}"),
            *([f"--virtual-time-budget={1000 * wait_s:.0f}"] if wait_s else []),
            *(*flags, "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
