"""Chains of jobs: when to submit the next job of a training that outlives its time limit, and what that costs.

`jobs_log` reads the history of a queue. `queue` plays it again on N nodes, `waits` predicts the wait of a job at a
moment, `policy` says how long before the end of a job the next one is submitted, `study` compares policies over many
moments, `published` is the simulation of the Mirage study, and `costs` has what policies and excluded nodes cost in
waiting.
"""
