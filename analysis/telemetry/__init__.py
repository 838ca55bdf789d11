"""Telemetry to look at: lines of some GPUs over time, bands of many, and what happened meanwhile.

`lines` gives at most so many points a line that no spike of a single reading is lost. `band` gives quantiles over many
GPUs. `happened` gives runs, jobs and events. `following` gives what came since.
"""
