"""The page Placement: where a job should run, what that gains and costs, and what policies gain in a replay.

`told` says what the page needs of `whorl advise`, `advised` shows it, `replayed` replays the store's own jobs.
"""
