"""`diskless query`: the group; its verbs are in modules of their own."""

import click

from diskless.cli import query_cut, query_rollback, query_show, query_spark, query_trace


@click.group("query", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look at Spark's queries by their checkpoints, and bring them back to earlier batches.

    A PATH is the checkpoint location of a query, the directory with offsets and commits in it.
    What changes a checkpoint is one step of the cluster's log, keeps what was there as a
    snapshot, and is refused while a query writes there.
    """


_MODULES = (query_show, query_rollback, query_cut, query_trace, query_spark)
for made in (verb for module in _MODULES for verb in module.VERBS):
    command.add_command(made)
