"""What all verbs share: options, help with examples and exit statuses, the client, output.

A verb is a function in a module of its own that takes a Context first. `--cluster`,
`--timeout` and `--json` may stand before the verb or after it.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from diskless.cli import exits
from diskless.errors import BadRequest, DeadlineExceeded, Unavailable

if TYPE_CHECKING:
    from diskless.client import Client

CLUSTER_VARIABLE = "DISKLESS_CLUSTER"
TIMEOUT_S = 30.0

SHARED = ("cluster", "token_file", "timeout_s", "json")

F = TypeVar("F", bound=Callable[..., Any])


class Context:
    """The shared options of one run, and the client that they lead to."""

    def __init__(self) -> None:
        self.cluster = ""
        self.token_file = ""
        self.timeout_s = TIMEOUT_S
        self.json = False

    def connect(self, *targets: "Target") -> "Client":
        """A client of the one cluster that all targets are in; closed when the verb ends.

        Raises BadRequest if they are in several, Unavailable if the cluster is dead.
        """
        from diskless.client import connect
        from diskless.client.descriptor import resolve
        from diskless.launch.record import advice_for_dead, refuse_dead

        clusters = {target.cluster for target in targets} or {self.cluster}
        if len(clusters) > 1:
            raise BadRequest(f"one cluster at a time, not {' and '.join(sorted(clusters))}")
        (cluster,) = clusters
        token = self.token()
        known = resolve(cluster, token=token)
        refuse_dead(known)
        try:
            client = connect(cluster, token=token, timeout_s=self.timeout_s)
        except (DeadlineExceeded, Unavailable) as error:
            advice = f"if the cluster is dead, {advice_for_dead(known)}"
            raise type(error)(f"{error}; {advice}") from error
        click.get_current_context().call_on_close(client.close)
        return client

    def token(self) -> str:
        """What is in --token-file; "" leaves it to the environment and the descriptor. Raises
        BadRequest."""
        from diskless.client.descriptor import read_token

        return read_token(self.token_file) if self.token_file else ""

    def target(self, text: str) -> "Target":
        return Target(text, default_cluster=self.cluster)

    def targets(self, texts: Iterable[str]) -> "list[Target]":
        return [self.target(text) for text in texts]

    def cluster_name(self) -> str:
        """For the verbs that need a cluster of this user. Raises BadRequest."""
        from diskless.client.descriptor import DEFAULT_NAME, descriptor_path

        name = self.cluster or DEFAULT_NAME
        descriptor_path(name)
        return name

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.json:
            click.echo(text)

    def warn(self, text: str) -> None:
        if not self.json:
            click.echo(text, err=True)

    def result(self, value: Any) -> None:
        """The JSON document of this run."""
        if self.json:
            click.echo(json.dumps(value))

    def results(self, values: Iterable[Any]) -> None:
        """The same, for a list that need not fit in memory."""
        if not self.json:
            return
        separator = "["
        for value in values:
            click.echo(separator + json.dumps(value))
            separator = ","
        click.echo("]" if separator == "," else "[]")


class Target:
    """A path in a cluster, as it was typed: `/a/b` or `diskless://NAME/a/b`."""

    def __init__(self, text: str, *, default_cluster: str) -> None:
        from diskless import paths
        from diskless.client.descriptor import SCHEME, parse_uri

        self.text = text
        self.cluster = default_cluster
        path = text
        if text.startswith(f"{SCHEME}:"):
            authority, path = parse_uri(text)
            self.cluster = authority or default_cluster
        elif not text.startswith("/"):
            raise BadRequest(f"{text!r} is not an absolute path: begin it with '/'")
        self.path = paths.normalize(path)
        paths.split(self.path)

    @property
    def means_directory(self) -> bool:
        return self.text.endswith("/")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def child(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"


class Verb(click.Command):
    """A command whose help ends with examples and exit statuses."""

    def __init__(
        self, *args: Any, examples: Sequence[str], statuses: Sequence[int], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.examples = examples
        self.statuses = sorted({exits.OK, exits.FAILED, exits.USAGE, *statuses, exits.INTERRUPTED})

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        with formatter.section("Exit statuses"):
            formatter.write_dl([(str(code), exits.MEANING[code]) for code in self.statuses])


def verb(
    name: str, *, examples: Sequence[str], statuses: Sequence[int], through_client: bool = True
) -> Callable[[Callable[..., Any]], Verb]:
    """Makes a verb of a function. Without a client there is no use for --timeout."""

    def wrap(function: Callable[..., Any]) -> Verb:
        made = click.command(
            name,
            cls=Verb,
            examples=examples,
            statuses=statuses,
            context_settings={"help_option_names": ["-h", "--help"]},
        )(shared_options(click.pass_obj(function)))
        assert isinstance(made, Verb)
        if not through_client:
            useless = ("timeout_s", "token_file")
            made.params = [option for option in made.params if option.name not in useless]
        made.params.sort(key=lambda parameter: parameter.name in SHARED)  # Its own come first.
        return made

    return wrap


def shared_options(function: F) -> F:
    """The options that every verb takes; they end up in the Context."""
    for option in (
        click.option(
            "--json", is_flag=True, expose_value=False, callback=_keep("json"),
            help="Print one JSON document, and errors as JSON on stderr.",
        ),
        click.option(
            "--timeout", "timeout_s", type=click.FloatRange(min=0.1), metavar="SECONDS",
            expose_value=False, callback=_keep("timeout_s"),
            help=f"Give up after so long without an answer.  [default: {TIMEOUT_S:g}]",
        ),
        click.option(
            "--token-file", "token_file", metavar="FILE", expose_value=False,
            callback=_keep("token_file"),
            help="A token to use the cluster with; also DISKLESS_TOKEN, else the descriptor.",
        ),
        click.option(
            "-c", "--cluster", metavar="NAME|HOST:PORT", envvar=CLUSTER_VARIABLE,
            expose_value=False, callback=_keep("cluster"),
            help=f"Which cluster, if a path does not say; also {CLUSTER_VARIABLE}.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        source = ctx.get_parameter_source(parameter.name or "")
        explicit = source is click.core.ParameterSource.COMMANDLINE
        if value is not None and (explicit or not getattr(ctx.obj, name)):
            setattr(ctx.obj, name, value)

    return keep
