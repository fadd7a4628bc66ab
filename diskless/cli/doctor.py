"""`diskless doctor`: one line for each check, and what to do."""

import click
from msgspec import to_builtins

from diskless.cli import exits
from diskless.cli.verb import Context, verb
from diskless.doctor.findings import Finding, Level

COLORS = {Level.OK: "green", Level.WARNING: "yellow", Level.WRONG: "red"}


@verb(
    "doctor",
    examples=(
        "diskless doctor",
        "diskless doctor --cluster night",
        "diskless doctor --json | jq '.findings[] | select(.level != \"ok\")'",
    ),
    statuses=(exits.UNWELL,),
    through_client=False,
)
def command(context: Context) -> int:
    """Check this machine and the cluster, and say what to do.

    Looks at versions, Java, pyspark and the jar, the rights of ~/.diskless and the cache; before
    a cluster is started also at memory, shared memory and ports; of one that runs at its
    descriptor, agents, margin, space and clocks. Each is ok, a warning or wrong. Nothing is
    changed. The exit status is 0 if nothing is wrong, also if there are warnings, else 31.
    """
    from diskless.doctor import cluster, machine

    name = context.cluster_name()
    found = cluster.known(name)
    about = cluster.examine(name)
    runs = any(finding.check == "margin" for finding in about)
    here = machine.examine(machine.Machine(), cluster.settings_of(found, name), runs=runs)
    findings = [*here, *about]
    for finding in findings:
        context.say(line(finding))
    worst = Level.OK
    for level in (Level.WARNING, Level.WRONG):
        if any(finding.level is level for finding in findings):
            worst = level
    context.result({"level": worst, "findings": to_builtins(findings)})
    return exits.UNWELL if worst is Level.WRONG else exits.OK


def line(finding: Finding) -> str:
    level = click.style(f"{finding.level:<7}", fg=COLORS[finding.level])
    advice = f"; {finding.advice}" if finding.advice else ""
    return f"{level}  {finding.check:<13}  {finding.found}{advice}"
