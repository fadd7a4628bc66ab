"""`diskless chaos`: the group; its verbs are in `chaos_faults` and `chaos_run`."""

import click

from diskless.cli import chaos_faults, chaos_run


@click.group("chaos", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Inject faults, undo them, and judge a whole run.

    A slot is written agent-2 or 2. Every fault is refused that would make more agents down
    than --max-down (k, unless you say otherwise): down is who is dead, recovering, frozen,
    cut off, slow, holding corrupt shards, or not re-protected yet.

    Agents are killed and frozen from outside; all other faults are planted in them, and only
    in a cluster that was started with `diskless up --chaos`.
    """


for made in (*chaos_faults.VERBS, chaos_run.run):
    command.add_command(made)
