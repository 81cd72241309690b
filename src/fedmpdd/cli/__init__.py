"""Words on the command line to calls, one file per command: no logic here.

Exit status: 0 done, 1 failed, 2 the input was bad, 130 stopped with Ctrl-C or SIGTERM. With --json, one JSON document
on standard output and everything else on standard error.
"""

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

import fedmpdd
from fedmpdd.cli import audit, compare, data, demo, epsilon, meter, mqtt, plan, replay, report, run
from fedmpdd.cli.shared import Command
from fedmpdd.display import messages
from fedmpdd.errors import FedmpddError, InputError

app = typer.Typer(
    help="Federated learning for scarce uplinks: a gradient as a few random projections and a seed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(mqtt.app, name="mqtt")
for command in (
    demo.demo,
    run.run,
    replay.replay,
    compare.compare,
    plan.plan,
    audit.audit,
    report.report,
    meter.meter,
    epsilon.epsilon,
):
    app.command(cls=Command)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(fedmpdd.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def add_plugins() -> None:
    """Add the commands of packages that announce some: entry points of the group `fedmpdd.commands`."""
    for point in entry_points(group="fedmpdd.commands"):
        app.command(point.name, cls=Command)(point.load())


def main() -> None:
    """Run the command line, and turn what this package raises on purpose into one line and an exit status."""
    try:
        add_plugins()
        app()
    except FedmpddError as error:
        messages.print(f"error: {error}", soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except OSError as error:  # a full disk, a folder that went away
        messages.print(f"failed: {error}", soft_wrap=True)
        sys.exit(1)
