"""The batch side: what Slurm knows of nodes and jobs, and advice in its words.

`slurm.Slurm` asks the scheduler, `formats` spells advice as options and `scontrol` lines, `applying` changes the
owner's own pending job. Nothing here changes a node.
"""
