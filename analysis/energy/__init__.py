"""Joules that add up: the energy of a GPU over time, who used it, and what that cost.

`readings` makes meters (`meter`) of telemetry: the energy of GPUs over any time; `attributing` cuts it into pieces
(`pieces`), each of one job, of nobody (idle) or of somebody unknown (unattributed), which add up to what was metered.
"""
