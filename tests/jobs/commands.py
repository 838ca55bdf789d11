"""Commands of a scheduler as small shell programs: each prints what was recorded, and writes down how it was called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


class Commands:
    """A folder of commands for the PATH of a scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PATH": f"{self.folder}:/usr/bin:/bin", "HOME": str(self.folder)}

    @property
    def calls(self) -> list[str]:
        """The command lines so far, \\x1f shown as a bar."""
        path = self.folder / "calls"
        return path.read_text().replace("\x1f", "|").splitlines() if path.exists() else []

    def answer(self, words: str, output: str = "", *, error: str = "", status: int = 0) -> None:
        """Let a command with such words (the command itself first, patterns of the shell) print so; the first fits."""
        name, _, pattern = words.partition(" ")
        number = len(list(self.folder.glob("*.out")))
        (self.folder / f"{number}.out").write_text(output)
        (self.folder / f"{number}.err").write_text(error)
        script = self.folder / name
        head = f'#!/bin/sh\ncd {self.folder}\necho "{name} $*" >> calls\n[ -t 0 ] || cat > {name}.input\ncase "$*" in\n'
        text = script.read_text().removesuffix("esac\n") if script.exists() else head
        script.write_text(f"{text}{pattern or '*'}) cat {number}.out; cat {number}.err >&2; exit {status} ;;\nesac\n")
        script.chmod(0o755)

    def input_of(self, name: str) -> str:
        """What the command was given to read."""
        return (self.folder / f"{name}.input").read_text()


def me() -> str:
    """The name of the user who runs the tests."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
