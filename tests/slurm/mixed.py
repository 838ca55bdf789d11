"""A Slurm of several kinds of nodes: other GPUs, other features, threads, limits, and nodes without GPUs."""

from __future__ import annotations

from pathlib import Path

from whorl.tests.slurm.daemons import GPUS, Slurm

NODES = 9


class Mixed(Slurm):
    """Three nodes of four V100, three of four A100, one with two of each, one with threads, and one without GPUs.

    `batch` has all of them, `old` those with V100, and `new` those with A100, of which a job gets six CPUs at most.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NODES)

    def _node_lines(self) -> str:
        lines = [
            f"{self._placed(1, 3)} Gres=gpu:v100:{GPUS} Feature=v100,cab1",
            f"{self._placed(4, 6)} Gres=gpu:a100:{GPUS} Feature=a100,cab2",
            f"{self._placed(7, 7)} Gres=gpu:v100:2,gpu:a100:2 Feature=v100,a100,cab2",
            f"{self._placed(8, 8)} Gres=gpu:a100:{GPUS} CPUs=16 ThreadsPerCore=2 RealMemory=8000 Feature=a100,big",
            f"{self._placed(9, 9)} Feature=cpu",
        ]
        return "".join(f"{line}\n" for line in lines)

    def _partition_lines(self) -> str:
        return (
            "PartitionName=old Nodes=n[01-03,07] MaxTime=1:00:00 State=UP PriorityTier=10\n"
            "PartitionName=new Nodes=n[04-06,08] MaxTime=1:00:00 MaxCPUsPerNode=6 State=UP PriorityTier=10\n"
        )

    def _gres_lines(self) -> str:
        device = f"{self.folder}/dev/nvidia"
        kinds = [
            ("n[01-03]", "v100", f"0-{GPUS - 1}"),
            ("n[04-06,08]", "a100", f"0-{GPUS - 1}"),
            ("n07", "v100", "0-1"),
            ("n07", "a100", "2-3"),
        ]
        return "".join(f"NodeName={n} Name=gpu Type={kind} File={device}[{part}]\n" for n, kind, part in kinds)
