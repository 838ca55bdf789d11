"""Joules that add up: the energy of a GPU over time, who used it, and what that cost.

`readings` makes meters (`meter`) of telemetry: the energy of GPUs over any time; `attribute` cuts it into pieces, each
of one job (`claims`), of nobody (idle) or of somebody unknown (unattributed), which add up to what was metered; `books`
adds them up, with grams and money; `answers` are the rows that people ask for. `minutes` keeps what meters show of days
that are over.
"""
