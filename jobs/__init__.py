"""The batch system: what a scheduler knows about nodes and jobs, and advice as its options.

SCHEDULERS has the classes that run a scheduler's commands, by the names that users type.
"""

import shutil
from collections.abc import Mapping

from ..errors import InputError
from .flux import Flux
from .lsf import Lsf
from .pbs import Pbs
from .scheduler import Scheduler
from .slurm import Slurm

SCHEDULERS: Mapping[str, type[Scheduler]] = {scheduler.name: scheduler for scheduler in (Slurm, Pbs, Lsf, Flux)}


def find_scheduler(name: str | None = None) -> Scheduler:
    """The scheduler of that name; without a name Slurm, or another one where only its commands are on this machine.

    Raises InputError for a name that is not in SCHEDULERS.
    """
    if name is None:
        present = [key for key, scheduler in SCHEDULERS.items() if shutil.which(scheduler.ping.split()[0])]
        name = next(iter(present), Slurm.name)
    if name not in SCHEDULERS:
        raise InputError(f"there is no scheduler {name!r}; there are {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]()
