"""Every error that whorl raises on purpose.

WhorlError            one clear sentence for a person; the command line prints it and exits with `exit_code`
├── InputError        what was given cannot be used: a file, a column, a unit, an option
│   └── UnitError     a unit is unknown, contradicts the data, or cannot be told
├── StoreError        the store cannot be opened, read or written
│   └── FormatError   the store has another format than this whorl reads
├── QueryError        an SQL query was refused or failed
├── SchedulerError    the batch scheduler is not here, does not answer, or refused
├── EngineError       the workers of an answer are not there, do not see its store, or are of another version
└── DeviceError       a GPU cannot do what was asked: no memory, no driver, it hangs or fell off the bus
"""

from __future__ import annotations


class WhorlError(Exception):
    """An error with a sentence for a person: what is wrong, where, and what to do."""

    exit_code = 1


class InputError(WhorlError):
    """What was given cannot be used: a file, a column, a unit, an option."""

    exit_code = 2


class UnitError(InputError):
    """A unit is unknown, contradicts the data, or cannot be told."""


class StoreError(WhorlError):
    """The store cannot be opened, read or written."""

    exit_code = 3


class FormatError(StoreError):
    """The store has another format than this whorl reads."""


class QueryError(WhorlError):
    """An SQL query was refused or failed."""

    exit_code = 4


class SchedulerError(WhorlError):
    """The batch scheduler is not here (`absent`), does not answer, or refused."""

    exit_code = 5

    def __init__(self, sentence: str, *, absent: bool = False) -> None:
        super().__init__(sentence)
        self.absent = absent


class EngineError(WhorlError):
    """The workers of an answer are not there, do not see its store, or are of another version."""

    exit_code = 5


class DeviceError(WhorlError):
    """A GPU cannot do what was asked; with `gone` set it answers nothing any more, and no further try helps.

    `outcome` is what a run that it ends is marked with, a code of `runs.status`: 'failed', 'lost' or 'hung'.
    """

    exit_code = 6

    def __init__(self, sentence: str, *, gone: bool = False, outcome: str = "failed") -> None:
        super().__init__(sentence)
        self.gone, self.outcome = gone, outcome
