"""Makes cluster/grafana.json: a dashboard for Grafana over what Prometheus scraped.

python cluster/make_grafana.py > cluster/grafana.json
"""

import json
from typing import Any

Panel = tuple[str, str, list[tuple[str, str]]]
"""A title, a unit of Grafana's, and expressions with their legends."""

LEADER = "max without (instance) ({})"
PANELS: list[Panel] = [
    ("Margin", "none", [(LEADER.format("diskless_margin"), "margin"),
                        (LEADER.format("diskless_parity_shards"), "k")]),
    ("Agents", "none", [(LEADER.format("diskless_agents"), "{{state}}")]),
    ("Stripes that are not well", "none",
     [(LEADER.format('diskless_stripes{health!="healthy"}'), "{{health}}"),
      (LEADER.format("diskless_repair_left_stripes"), "to repair"),
      (LEADER.format("diskless_repair_unprotectable_stripes"), "no room"),
      (LEADER.format("diskless_repair_at_stake_stripes"), "lost with announced ends")]),
    ("Repair", "Bps", [(LEADER.format("diskless_repair_bytes_per_second"), "rate")]),
    ("Commits", "ops", [("sum(rate(diskless_commit_duration_seconds_count[1m]))", "commits"),
                        ("sum(rate(diskless_read_duration_seconds_count[1m]))", "reads")]),
    ("Commit latency", "s",
     [("histogram_quantile(0.5, sum by (le) "
       "(rate(diskless_commit_duration_seconds_bucket[1m])))", "p50"),
      ("histogram_quantile(0.99, sum by (le) "
       "(rate(diskless_commit_duration_seconds_bucket[1m])))", "p99")]),
    ("Bytes in and out", "Bps", [("sum(rate(diskless_committed_bytes_total[1m]))", "written"),
                                 ("sum(rate(diskless_read_bytes_total[1m]))", "read")]),
    ("Reads that were not plain", "ops",
     [("sum(rate(diskless_degraded_reads_total[1m]))", "degraded"),
      ("sum(rate(diskless_corrupt_shards_total[1m]))", "corrupt")]),
    ("Memory by kind", "bytes", [("sum by (kind) (diskless_memory_bytes)", "{{kind}}")]),
    ("Memory of agents, of all that they may take", "percentunit",
     [("sum without (kind) (diskless_memory_bytes{kind!='copies'}) / diskless_memory_max_bytes",
       "{{instance}}")]),
    ("Bytes of other agents that reads found near", "percentunit",
     [("sum(rate(diskless_copies_hit_bytes_total[5m])) "
       "/ (sum(rate(diskless_copies_hit_bytes_total[5m])) "
       "+ sum(rate(diskless_copies_missed_bytes_total[5m])))", "near")]),
    ("Loop lag, p99", "s", [('diskless_loop_lag_seconds{statistic="p99"}', "{{instance}}")]),
    ("Leader", "none", [("diskless_leads", "{{instance}}")]),
    ("Tier: what would be lost with everything", "s",
     [(LEADER.format("diskless_tier_lag_seconds"), "lag"),
      (LEADER.format("diskless_tier_lag_max_seconds"), "bound")]),
    ("Tier: to come back", "bytes", [(LEADER.format("diskless_hydration_left_bytes"), "left")]),
    ("Reads that found their bytes in memory", "percentunit",
     [("sum(rate(diskless_cache_hits_total[5m])) / (sum(rate(diskless_cache_hits_total[5m])) "
       "+ sum(rate(diskless_cache_misses_total[5m])))", "hit rate")]),
    ("What other reads waited for the tier", "s",
     [("sum(rate(diskless_cache_wait_seconds_total[5m])) "
       "/ sum(rate(diskless_cache_misses_total[5m]))", "hydration")]),
    ("Evicted: in the tier alone", "bytes",
     [(LEADER.format("diskless_evicted_bytes"), "evicted")]),
    ("Rounds to the tier that failed", "ops",
     [("sum(rate(diskless_tier_failed_rounds_total[5m]))", "failed")]),
    ("Since the last drill", "s",
     [("time() - " + LEADER.format("diskless_tier_drill_timestamp_seconds"), "age")]),
    ("Margin by parity", "none", [(LEADER.format("diskless_class_margin"), "parity {{parity}}")]),
    ("Quotas, of all that they may take", "percentunit",
     [(LEADER.format("diskless_quota_used_bytes / diskless_quota_max_bytes"), "{{path}}")]),
    ("Held until they are durable", "none",
     [(LEADER.format("diskless_tier_held_answers"), "answers")]),
    ("Refused and failed", "ops",
     [("sum by (reason) (rate(diskless_refused_total[5m]))", "refused: {{reason}}"),
      ("sum by (reason) (rate(diskless_client_errors_total[5m]))", "{{reason}}")]),
    ("Files and snapshots", "none", [(LEADER.format("diskless_files"), "files"),
                                     (LEADER.format("diskless_snapshots"), "snapshots"),
                                     (LEADER.format("diskless_sessions"), "sessions"),
                                     (LEADER.format("diskless_leases"), "leases")]),
    ("CPU", "percentunit", [("rate(process_cpu_seconds_total[1m])", "{{instance}}")]),
    ("Resident memory", "bytes", [("process_resident_memory_bytes", "{{instance}}")]),
]  # fmt: skip
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 12, 8


def dashboard() -> dict[str, Any]:
    return {
        "title": "diskless",
        "uid": "diskless",
        "schemaVersion": 38,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus"}],
        },
        "annotations": {
            "list": [
                {
                    "name": "leader changes",
                    "datasource": SOURCE,
                    "enable": True,
                    "expr": "max(changes(diskless_leader_changes_total[1m])) > 0",
                }
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    title, unit, queries = panel
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {
            "x": WIDTH * (number % 2),
            "y": HEIGHT * (number // 2),
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": said}
            for at, (expr, said) in enumerate(queries)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
