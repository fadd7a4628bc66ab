"""Where the program begins and ends: verbs are found, errors become one line and a status.

No traceback ever reaches a user (DISKLESS_DEBUG=1 brings them back for developers). With
`--json` the line on stderr is a JSON object: {"error", "message", "exit_status"}.
"""

import atexit
import errno
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from diskless import __version__
from diskless.cli import exits
from diskless.cli.verb import Context, shared_options
from diskless.errors import DisklessError

STORE_LIBRARY = "obstore"
VERBS = {
    "up": "Start a cluster and wait until every agent serves.",
    "down": "End a cluster, with all that it holds.",
    "status": "Show agents, voters, margin, stripes and sizes.",
    "doctor": "Check this machine and the cluster, and say what to do.",
    "dashboard": "Show the cluster on a page, live.",
    "log": "Show what happened in the namespace lately.",
    "logs": "Show what agents wrote to their logs.",
    "ls": "List files and directories.",
    "put": "Store local files, or standard input.",
    "get": "Fetch files to this machine, or to standard output.",
    "cat": "Write files to standard output.",
    "stat": "Show what is known of files and directories.",
    "du": "Count files and bytes under paths.",
    "mv": "Move or rename files and directories.",
    "rm": "Delete files and directories.",
    "mkdir": "Make directories, with their parents.",
    "snapshot": "Keep directories as they are, and see what has changed since.",
    "clone": "Copy a directory in one step, at no cost in bytes.",
    "rollback": "Bring a directory back to a snapshot of it.",
    "query": "Look at Spark's queries, and bring them back to earlier batches.",
    "advise": "Say how often queries should checkpoint, and what to set for it.",
    "policy": "Set what paths ask for: durability, parity, quota, priority and more.",
    "tier": "Manage the durable tier, which outlives every machine.",
    "token": "Give clients keys of their own, list and revoke them.",
    "jar": "Print the path of the jar for Spark.",
    "spark-conf": "Print the properties for spark-submit.",
    "drain": "Move everything off an agent before maintenance.",
    "restart": "Restart agents, one after the other, without a risk to data.",
    "plan": "Show what m and k cost, and how likely they are to lose something.",
    "adopt": "Bring a cluster whose Ray head is lost under another Ray.",
    "tls": "Show and renew the certificates of agents.",
    "chaos": "Inject faults, undo them, and judge a whole run.",
    "bench": "Measure diskless beside local files and Redis, and report it.",
}
DEBUG_VARIABLE = "DISKLESS_DEBUG"

_LOCAL_EXITS: dict[type[OSError], int] = {
    FileNotFoundError: exits.NOT_FOUND,
    FileExistsError: exits.EXISTS,
    IsADirectoryError: exits.WRONG_KIND,
    NotADirectoryError: exits.WRONG_KIND,
}


class OutputClosed(Exception):
    """Nobody reads our output any more."""


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


class Verbs(click.Group):
    """Imports a verb's module when it is used; the list of verbs imports none."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        # Click would exit with 1 for the one and print an empty line for the other.
        except BrokenPipeError as error:
            raise OutputClosed from error
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"diskless.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for line in (
                "diskless up --agents 6 -m 4 -k 2 --memory 512MiB",
                "diskless put model.bin /models/1 && diskless chaos kill 2 5 --stay-dead",
                "diskless get /models/1 copy.bin && cmp model.bin copy.bin",
            ):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        with formatter.section("Exit statuses"):
            formatter.write_dl([(str(code), text) for code, text in exits.MEANING.items()])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@shared_options
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """A checkpoint store for Spark in the memory of the cluster, Reed-Solomon coded.

    Paths in a cluster are absolute: /a/b, or diskless://CLUSTER/a/b. Every verb takes
    --json and then prints one JSON document on stdout and errors as JSON on stderr.
    """


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminated)
    status = run(sys.argv[1:])
    if STORE_LIBRARY in sys.modules:
        _leave(status)
    sys.exit(status)


def _leave(status: int) -> None:
    """Ends the process without taking the interpreter down: threads of the library for stores
    may still come back to it, and would abort the process (PyO3/pyo3-async-runtimes#40)."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def run(arguments: Sequence[str]) -> int:
    """Runs one verb and gives its exit status. Nothing but SystemExit's kin gets out."""
    as_json = _wants_json(arguments)
    try:
        outcome = cli.main(
            args=list(arguments), prog_name="diskless", obj=Context(), standalone_mode=False
        )
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else exits.OK
    except BaseException as error:
        if os.environ.get(DEBUG_VARIABLE) and not isinstance(error, click.ClickException):
            raise
        return _fail(error, as_json=as_json)


def _fail(error: BaseException, *, as_json: bool) -> int:
    if isinstance(error, KeyboardInterrupt | Interrupted | click.Abort):
        return exits.INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else exits.FAILED
    if isinstance(error, BrokenPipeError | OutputClosed):
        # The interpreter would complain again when it flushes stdout at its end.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    reason, message, status = _describe(error)
    if as_json:
        line = json.dumps({"error": reason, "message": message, "exit_status": status})
    else:
        line = f"diskless: {message}"
    print(line, file=sys.stderr, flush=True)
    return status


def _describe(error: BaseException) -> tuple[str, str, int]:
    """The error's class, one line about it, and the exit status."""
    if isinstance(error, DisklessError):
        return error.reason, _one_line(str(error)), error.exit_code
    if isinstance(error, click.ClickException):
        return "Usage", _usage(error), exits.USAGE
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        text = error.strerror or os.strerror(error.errno or errno.EIO)
        return type(error).__name__, name + text, _LOCAL_EXITS.get(type(error), exits.FAILED)
    text = f"{type(error).__name__}: {_one_line(str(error))}"
    return "InternalError", f"{text}: a bug; {DEBUG_VARIABLE}=1 shows where", exits.FAILED


def _usage(error: click.ClickException) -> str:
    message = _one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "diskless"
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _wants_json(arguments: Sequence[str]) -> bool:
    """Asked of the raw arguments, since errors in them must be printed in kind too."""
    options = list(arguments)
    if "--" in options:
        options = options[: options.index("--")]
    return "--json" in options


def _terminated(_signal: int, _frame: object) -> None:
    """As an exception, so that `up` cleans up what it has started."""
    sys.exit(128 + signal.SIGTERM)
