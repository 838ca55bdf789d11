"""How a run came out: the codes of `runs.status` and of `runs.ended_by`."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """A code with its meaning."""

    meaning: str

    def __new__(cls, code: str, meaning: str = "") -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


class Outcome(Code):
    """Whether the figures of a run are to be trusted; `runs.status_detail` says it in a sentence."""

    OK = "ok", "it ended well"
    WRONG_RESULT = "wrong_result", "the check found wrong elements: its figures are not to be trusted"
    LOST = "lost", "the GPU fell off the bus, or its driver does not reach it any more"
    HUNG = "hung", "the GPU did not end its work in time"
    FAILED = "failed", "anything else that kept it from ending"


class EndedBy(Code):
    """Why measuring ended."""

    PRECISE = "precise", "the interval was as narrow as asked"
    TIME_LIMIT = "time limit", "the time was over"
    MOST_REPEATS = "most repeats", "no more repeats fit"
    COMPLETE = "complete", "all was done: its length is fixed"
    FAILED = "failed", "it did not end: there are no figures"
