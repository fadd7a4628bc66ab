"""Makes docs/metrics.md from the tables of metrics:

python -m diskless.dashboard.reference > docs/metrics.md
"""

from collections.abc import Iterable
from typing import Any

from diskless.dashboard.metrics import AGENT, CLUSTER, Spec

INTRODUCTION = """\
# Metrics

Every agent serves `/metrics` in Prometheus' format, on loopback, at the port `--metrics-port` plus
its slot: `diskless up` has 19470 there, so agent-3 is at 19473. If that port is taken an agent
uses another one and says so in its log; `diskless status --json` has each agent's address as
`http`. `--metrics-port 0` turns it off. With `--metrics-open` agents also serve other hosts, at the
address that they are reached at, by HTTPS with their certificates; without TLS they do not.

A scrape needs a token of `diskless token create`, as `Authorization: Bearer`. Metrics tell what
`diskless status` does, and any token that is good may ask for that; so the one that Prometheus
has need not be for a path that anything is at:

    diskless token create --path /nothing --rights r --name prometheus --expires never > token

    scrape_configs:
      - job_name: diskless
        authorization: {credentials_file: token}
        static_configs:
          - targets: [127.0.0.1:19470, 127.0.0.1:19471, 127.0.0.1:19472]

The alarms are in [cluster/alerts.yml](../cluster/alerts.yml), a dashboard for Grafana in
[cluster/grafana.json](../cluster/grafana.json).

This page is made from the code: `python -m diskless.dashboard.reference > docs/metrics.md`.
"""


def page() -> str:
    parts = [
        INTRODUCTION,
        "## Of each agent\n",
        "Counters begin at 0 when the agent starts.\n",
        _table(AGENT),
        "Beside these, `process_cpu_seconds_total`, `process_resident_memory_bytes`,",
        "`process_open_fds` and the like, of its process.\n",
        "## Of the cluster\n",
        "Only the agent that leads has them: use `max without (instance)`, which is the one that",
        "there is. Without a leader there is none, which is an alarm of its own.\n",
        _table(CLUSTER),
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _table(specs: Iterable[Spec[Any]]) -> str:
    lines = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    lines += [
        f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels)} | {spec.help} |"
        for spec in specs
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
