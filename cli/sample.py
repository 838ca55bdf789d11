"""`whorl sample`: write a generated sample fleet as files that `whorl import` reads."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click


@click.command("sample", short_help="Write the files of a small generated fleet.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--gpus", type=int, help="How many GPUs the fleet has: a multiple of 4.  [default: 96]")
@click.option("--seed", type=int, help="The fleet's seed; one seed, one fleet.  [default: 47]")
@click.option("--force", is_flag=True, help="Replace existing files of the same names.")
def sample(folder: Path, gpus: int | None, seed: int | None, force: bool) -> None:
    """Write the measurements of a small simulated fleet into DIR, with faults planted in three GPUs.

    The data are generated, not measured. The files look like those of real tools.
    """
    from ..errors import InputError
    from ..simulation.sample import FILES, GPUS, SEED, write_sample

    if not force and (there := [name for name in FILES if os.path.lexists(folder / name)]):
        raise InputError(f"{folder} already has {', '.join(there)}: choose another folder, or give --force")
    made = write_sample(folder, gpus=GPUS if gpus is None else gpus, seed=SEED if seed is None else seed)
    click.echo(f"generated {made.gpus} simulated V100 GPUs with seed {made.seed}")
    for path in made.files:
        click.echo(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")
    for gpu in made.planted:
        click.echo(f"planted {gpu.kind}: {gpu.name} ({gpu.uuid})")
    click.echo(f"next: whorl import --store S --cluster sample {shlex.quote(str(folder))}/*")
    click.echo("      whorl variability --store S")
    click.echo("      whorl energy --store S")
