import click


@click.command("variability")
def variability() -> None:
    """x"""
