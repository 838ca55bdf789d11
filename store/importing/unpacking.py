"""How large a file may become when it is unpacked: a few kilobytes can hold more than any memory."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError

_RATIO, _LEAST = 100, 64 << 20  # bytes


def most(size: int) -> int:
    """How many bytes a file of this size may become."""
    return max(_LEAST, _RATIO * size)


def too_much(path: Path) -> InputError:
    """The sentence for a small file that becomes huge: files of measurements do not."""
    return InputError(
        f"{path} unpacks to more than {_RATIO} times its size, unlike any measurements; "
        "if the file is right, unpack it first and import the result"
    )
