"""Pseudonyms for users and accounts: the same name gives the same one in a store, and nobody without its key finds it.

A plain hash would not do: whoever has a list of the users hashes them all and compares. The key is a file of the store
that only its owner reads. Once a store has a key, every later import uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from pathlib import Path

import polars as pl

from ...errors import StoreError

FILE = "pseudonyms.key"
USER = "user-"  # begins the pseudonym of a user
_BYTES = 32
_SHOWN = 16  # hexadecimal digits: of a million names two are alike with a chance of 3 in 100 million


def key(root: Path, *, make: bool) -> bytes | None:
    """The store's key; if there is none, a new one where `make`, else None. Raises StoreError."""
    path = root / FILE
    if make:
        _make(path)
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror}): users of this store have pseudonyms, so its owner imports jobs"
        ) from error
    if len(secret) != _BYTES:
        raise StoreError(f"{path} is damaged: restore it from a backup; with another key users get other pseudonyms")
    return secret


def _make(path: Path) -> None:
    """Make a key, all of it at once, unless there is one."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            file.write(os.urandom(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # fails if another import was first
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"the key {path} cannot be made: {error.strerror}") from error


def apply(rows: pl.DataFrame, secret: bytes) -> pl.DataFrame:
    """The rows with pseudonyms in place of users and accounts."""
    for column in ("user", "account"):
        names = rows[column].drop_nulls().unique().to_list()
        stands_for = {name: pseudonym(secret, column, name) for name in names}
        rows = rows.with_columns(pl.col(column).replace_strict(stands_for, default=None, return_dtype=pl.String))
    return rows


def pseudonym(secret: bytes, column: str, name: str) -> str:
    """What stands for a name in a column, `user` or `account`."""
    return f"{column}-{hmac.new(secret, f'{column}:{name}'.encode(), hashlib.sha256).hexdigest()[:_SHOWN]}"
