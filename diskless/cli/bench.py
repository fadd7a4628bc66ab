"""`diskless bench`: the group; its verbs are in `bench_run`, `bench_report`, `bench_recovery`."""

import click

from diskless.cli import bench_recovery, bench_report, bench_run


@click.group("bench", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure diskless beside local files and Redis, and report it."""


for made in (bench_run.run, bench_report.report, bench_recovery.recovery_table):
    command.add_command(made)
