"""The batch system: what a scheduler knows about nodes and jobs, and advice as its options.

SCHEDULERS has the classes that run a scheduler's commands, by the names that users type.
"""

from collections.abc import Mapping

from .scheduler import Scheduler
from .slurm import Slurm

SCHEDULERS: Mapping[str, type[Scheduler]] = {scheduler.name: scheduler for scheduler in (Slurm,)}
