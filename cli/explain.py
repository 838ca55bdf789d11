"""`whorl explain`: one GPU or one finding: rank, history, the cause of what was found, and what to do."""

from __future__ import annotations

import click

from .options import cluster_option, json_option, store_option


@click.command("explain", short_help="One GPU or finding: rank, history, cause, what to do.")
@click.argument("name", metavar="NAME")
@store_option
@cluster_option
@json_option
def explain(name: str, store: str, cluster: str | None, as_json: bool) -> None:
    """Explain one GPU. NAME is node/slot, the UUID, the serial number, or a part that no other GPU has.

    Or it is the name of a node or batch that `whorl verdicts` has found something about.

    \b
    whorl explain c001-4/3 --store S
    whorl explain 87570fdd --store S
    whorl explain "28 GPUs" --store S
    """
    from ..dashboards.answers.judging import explain as explained
    from .output import ProgressBar, print_reply

    with ProgressBar() as progress:
        progress.say("judging the GPUs")
        reply = explained(store, name, cluster=cluster)
    print_reply(reply, as_json=as_json)
