"""`whorl probe prolog`: whether each GPU here is fit for a job, in seconds and in one line."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .options import FAULT_ROW, Span, backend_option, json_option, simulated_rows

if TYPE_CHECKING:
    from ..probes.prolog import Fitness


@click.command("prolog", short_help="Are the GPUs here fit for a job? In 5 s and one line, for Slurm.")
@click.option("--timeout", type=Span(), default="5s", show_default=True, help="Answer after this time at the latest.")
@click.option("--store", metavar="DIR", help="Store why a GPU is unfit, as an event.")
@backend_option(
    "cuda",
    "simulated",
    default="cuda",
    says="cuda: the GPUs of this node; simulated: GPUs that are not there.",
    simulated=(*simulated_rows(64), FAULT_ROW),
)
@json_option
def prolog(timeout: float, store: str | None, backend: str, as_json: bool, **simulated: object) -> None:
    """Look at each GPU of this node for a few seconds, before a job begins: is it fit?

    What its driver says of its health; whether a context opens; a product, patterns over a part of its memory and on
    each multiprocessor, all checked. With CUDA_VISIBLE_DEVICES, only at the GPUs that it names. The line that it prints
    is made for the reason of a drained node.

    \b
    Exit status:
    0  every GPU is fit
    1  a GPU is unfit
    3  not known: there was not enough time, no driver, or no CuPy
    """
    from ..errors import WhorlError

    try:
        looked = _look(timeout, backend, {name: value for name, value in simulated.items() if value not in (None, ())})
        reasons = [gpu.reason for gpu in looked if gpu.reason]
    except WhorlError as error:
        if backend == "simulated":  # of its options, not of a node
            raise
        looked, reasons = [], [str(error)]
    unfit = [gpu for gpu in looked if gpu.fit is False]
    status = 1 if unfit else 3 if reasons or not looked else 0
    if unfit:
        reasons.sort(key=lambda reason: reason not in {gpu.reason for gpu in unfit})
    others = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    reason = f"{reasons[0]}{others}" if reasons else "" if looked else "there is no GPU"
    if unfit and store is not None:
        from ..probes.prolog import store_unfit
        from .output import tell

        try:
            store_unfit(store, unfit)
        except WhorlError as error:  # what was found stays true
            tell(str(error))
    if as_json:
        from .output import print_json

        gpus = [asdict(gpu) for gpu in looked]
        print_json({"schema": "whorl.probe.prolog/1", "exit_status": status, "reason": reason or None, "gpus": gpus})
    else:
        click.echo(f"whorl: {reason}" if reason else f"whorl: {len(looked)} GPU{'s' * (len(looked) != 1)} fit")
    sys.exit(status)


def _look(timeout: float, backend: str, simulated: dict[str, object]) -> list[Fitness]:
    from ..probes import prolog

    if backend == "cuda":
        return prolog.look(timeout)
    from ..probes.measurement import drawn_fleet

    return prolog.look_simulated(drawn_fleet(**simulated))  # type: ignore[arg-type]
