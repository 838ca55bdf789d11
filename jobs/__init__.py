"""The batch system: what Slurm knows about nodes and jobs, and advice as Slurm options.

`slurm.Slurm` asks the scheduler, `formats` spells advice as options and `scontrol` lines, `applying` changes the
owner's own pending job. Nothing here changes a node.
"""
