"""The commands a person types: one file for each verb. What a verb needs is imported when it runs."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from threading import enumerate as enumerate_threads
from types import FrameType
from typing import Any, NoReturn, TextIO

import click

from .. import __version__
from ..errors import InputError, QueryError, WhorlError

_NAMED_ALIKE = ("ClusterShell", "duckdb", "numpy", "plotly", "polars", "pyarrow", "rich", "scipy", "waitress")
_DEPENDENCIES = {name: name for name in _NAMED_ALIKE} | {
    "cupy": "cupy-cuda13x",
    "dash": "'whorl[dashboard]'",
    "dash_ag_grid": "'whorl[dashboard]'",
    "opentelemetry": "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
}
"""What pip calls the packages that verbs need, by the name of their module."""
BACKGROUND_THREADS = ("ahead", "slowly", "whorl-check")
"""Threads that may still work at the end: those of `whorl dashboard`, as dashboards/app names them, and a late check's,
as cli/answers/check.py names it."""
_PAGES = Path(__file__).parents[1] / "docs"
_IMPORTING = "<frozen importlib._bootstrap>"
_AGAIN_S = 0.02  # how soon an interrupt that waits is looked at again
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What an answer that goes to a file can meet. An error of a store's file is a StoreError, or names the file."""


def _dependency(module: str | None) -> str | None:
    """Which package is missing if a module is not found, and how to install it; None if it is not a dependency."""
    package = (module or "").partition(".")[0]
    if package not in _DEPENDENCIES:
        return None
    return f"{package}, which is not installed here: run pip install {_DEPENDENCIES[package]}, or use another machine"


class _Warnings(logging.Handler):
    """Warnings of the library, as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        from .output import tell

        tell(f"{record.levelname.lower()}: {record.getMessage()}")


class _Interrupts:
    """Whether somebody pressed Ctrl-C while the block ran.

    A library that runs in C may answer the interrupt with an error of its own: DuckDB says `RuntimeError: Query
    interrupted`, or what it was doing fails. So it is remembered that the interrupt came. A verb that takes SIGINT
    for itself, as `collect` does, puts its own handler in place, and nothing is remembered.

    While a module is imported the interrupt waits: a library in C++ that meets an error at its start ends the process.
    """

    def __init__(self) -> None:
        self.came = False
        self._alarm: Any = None  # what answered SIGALRM before an interrupt had to wait

    def __enter__(self) -> _Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        self._ours = self._before is signal.default_int_handler and current_thread() is main_thread()
        if self._ours:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, self._before)
            if self._alarm is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._alarm)

    def _note(self, _: int, frame: FrameType | None) -> None:
        self.came = True
        if _imports(frame):
            before = signal.signal(signal.SIGALRM, self._note)
            self._alarm = self._alarm or before
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            signal.default_int_handler(signal.SIGINT, frame)


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported in a frame or in one that called it."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _discard() -> None:
    """Let what is still buffered go nowhere: to write it at the end would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_full(error: BaseException) -> bool:
    """Whether standard output takes no more."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None


def _end_unwritten(error: BaseException) -> NoReturn:
    """End the command, as its output could not be written whole."""
    _discard()
    click.echo(
        f"whorl: the output could not be written to standard output ({getattr(error, 'strerror', error)}); what was "
        "stored stays: free some space, or write the output elsewhere",
        err=True,
    )
    sys.exit(InputError.exit_code)


def _printable(error: click.ClickException) -> click.ClickException:
    """The error of click with a message that is printable and short: it repeats what was typed.

    A help text, and a list of what may be chosen, are click's own words, in several lines.
    """
    from ..dashboards.words import cut, printable

    own_words = click.exceptions.NoArgsIsHelpError | click.MissingParameter
    if isinstance(error, own_words):
        return error
    message = printable(cut(error.format_message()))
    return error if message == error.format_message() else click.UsageError(message, getattr(error, "ctx", None))


def _refuse_twice(ctx: click.Context, command: click.Command, words: list[str]) -> None:
    """Refuse an option that takes one value and is given several times: click keeps the last value, and says nothing.

    Raises click.UsageError, or what the command has as `wrong`.
    """
    within = click.Context(command, info_name=command.name, parent=ctx)
    try:
        _, rest, order = command.make_parser(within).parse_args(args=list(words))
        inner = command.resolve_command(within, rest) if isinstance(command, click.Group) and rest else None
    except click.UsageError:
        return  # the command says it itself
    for option, times in Counter(order).items():
        if times > 1 and isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count):
            sentence = f"{option.opts[0]} is given {times} times, and takes one value: leave out the others"
            raise getattr(command, "wrong", click.UsageError)(sentence, within)
    if inner is not None and inner[1] is not None:
        _refuse_twice(within, inner[1], inner[2])


class _Group(click.Group):
    """The command group that turns whorl's errors into one sentence and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        with _Interrupts() as interrupts:
            try:
                answer = super().invoke(ctx)
                sys.stdout.flush()
            except BrokenPipeError:  # the reader has closed the pipe, as in `whorl ... | head`
                _discard()
                ctx.exit(128 + signal.SIGPIPE)
            except SystemExit:
                raise
            except BaseException as error:  # libraries in Rust make of an interrupt what is no Exception
                if interrupts.came or isinstance(error, KeyboardInterrupt):
                    from .ending import ended

                    ended("interrupted")
                    ctx.exit(128 + signal.SIGINT)
                if isinstance(error, ModuleNotFoundError) and (missing := _dependency(error.name)):
                    click.echo(f"whorl: {ctx.invoked_subcommand} needs {missing}", err=True)
                    ctx.exit(InputError.exit_code)
                if _is_full(error):
                    _end_unwritten(error)
                if isinstance(error, click.ClickException):
                    raise _printable(error) from None
                if not isinstance(error, WhorlError):
                    raise
                from .output import tell

                tell(str(error), lines=isinstance(error, QueryError))  # DuckDB points into the line of the query
                ctx.exit(error.exit_code)
            return answer

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _refuse_twice(ctx, command, words)
        return name, command, words

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except click.ClickException as error:
            raise _printable(error) from None
        except OSError as error:  # of `whorl --help`
            if _is_full(error):
                _end_unwritten(error)
            raise

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by section."""
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                rows = [(name, command.get_short_help_str(200)) for name in names if (command := self.commands[name])]
                formatter.write_dl(rows, col_max=14)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say where the pages lie that help texts and messages name."""
        super().format_epilog(ctx, formatter)
        if _PAGES.is_dir():
            formatter.write_paragraph()
            formatter.write(f"New to whorl? Read docs/tutorial.md. The pages are in\n{_PAGES}\n")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="whorl")
def cli() -> None:
    """Measure every GPU of a fleet; see which GPUs differ, and whether the difference is real.

    \b
    Start here; neither line needs a GPU:
      whorl demo                      measure, compare and report a small fleet
      whorl import --store S FILE ... measurements that you have, of any tool
    Then:
      whorl verdicts --store S        which GPUs are odd, worst first
      whorl explain NAME --store S    one GPU: rank, history, cause, what to do
      whorl report --store S          the same as one page, report.html

    \b
    Exit status (`check` has its own: 0 OK, 1 warning, 2 critical, 3 unknown):
    0    done
    1    a check failed
    2    bad input or option, or the output could not be written
    3    the store cannot be used
    4    a query failed
    5    the scheduler does not answer or refused, or workers are missing
    6    a GPU failed or cannot be used
    130  interrupted
    141  the reader of a pipe closed it
    """
    handler = _Warnings()
    handler.setLevel(logging.WARNING)
    logging.getLogger("whorl").handlers = [handler]


_SECTIONS = {
    "Verbs": {
        "demo": "demo:demo",
        "import": "import_files:import_files",
        "collect": "collect:collect",
        "campaign": "campaign:campaign",
        "verdicts": "verdicts:verdicts",
        "explain": "explain:explain",
        "advise": "advise:advise",
        "energy": "energy:energy",
        "report": "report:report",
        "dashboard": "dashboard:dashboard",
        "sql": "sql:sql",
        "doctor": "doctor:doctor",
    },
    "For operators": {"store": "store:store_group", "check": "check:check"},
    "More": {
        "probe": "probe:probe",
        "jobs": "jobs:jobs",
        "replay": "replay:replay",
        "tune": "tune:tune",
        "export": "export:export",
        "man": "man:man",
        "schema": "schema:schema",
    },
}
_VERBS = {name: where for verbs in _SECTIONS.values() for name, where in verbs.items()}


class _Verbs(Mapping[str, click.Command]):
    """The verbs by name. Each is imported when it is asked for: to import all takes longer than many a verb."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = _VERBS[name].partition(":")
        found: click.Command = getattr(import_module(f".{module}", __name__), function)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_VERBS)

    def __len__(self) -> int:
        return len(_VERBS)


cli.commands = _Verbs()  # type: ignore[assignment]  # click looks names up and lists them, and nothing else


_ANSWERS = ("verdicts", "explain", "advise", "energy", "report")
"""Verbs that run no command of a user."""


def main() -> None:
    """Run the command line."""
    # Else NumPy has a thread for each core. whorl's matrices are small, and threads that wait take time from others.
    # Other verbs run or submit a user's commands, which have the user's environment.
    if sys.argv[1:2] and sys.argv[1] in _ANSWERS:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # If standard output or error is closed at the start (`>&-`), Python has none. Nobody reads it, so nothing may fail.
    nowhere = Path(os.devnull)
    sys.stdout = _whole(sys.stdout or nowhere.open("w"))
    sys.stderr = sys.stderr or nowhere.open("w")
    try:
        cli(prog_name="whorl")
    except SystemExit as end:
        _leave_threads(end.code)
        raise


def _whole(stdout: TextIO) -> TextIO:
    """Standard output that writes whole texts. With `python -u` or PYTHONUNBUFFERED, Python writes what a pipe or a
    disk takes at once, and drops the rest without an error."""
    raw = getattr(stdout, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        return stdout
    return io.TextIOWrapper(io.BufferedWriter(raw), stdout.encoding, stdout.errors, write_through=True)


def _leave_threads(code: str | int | None) -> None:
    """End the process at once where a thread still works: Python would end it in C++ code, which aborts, or wait."""
    if isinstance(code, int | None) and any(thread.name in BACKGROUND_THREADS for thread in enumerate_threads()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
