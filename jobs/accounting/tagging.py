"""The work of `whorl jobs tag`: the shell script of prologs and epilogs, to be installed or run."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

from ...errors import InputError
from ...store.system.files import failed, make_folder

SCRIPT = "tag.sh"
SPOOL = "tags"  # the folder of a store's own tags


def script() -> str:
    """The script, as text."""
    return files(__package__).joinpath(SCRIPT).read_text(encoding="utf-8")


def tag(event: str, *, store: str | Path | None = None, folder: Path | None = None) -> str:
    """Note that the job of this process begins or ends; returns what the script complains about, "" if nothing.

    The tag goes into `folder`, else into the store's own folder of tags. Raises InputError where neither is given,
    StoreError where that folder cannot be made.
    """
    if folder is None:
        if store is None:
            raise InputError("say where the tag goes: --folder FOLDER, or --store S for the store's own folder")
        folder = Path(store) / SPOOL
        try:
            make_folder(folder)
        except OSError as error:
            raise failed("make", folder, error) from error
    done = subprocess.run(  # noqa: S603  whorl's own script
        ["/bin/sh", "-s", "--", event, str(folder)], input=script(), capture_output=True, text=True, check=False
    )
    return done.stderr.strip()
