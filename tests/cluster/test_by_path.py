"""What paths ask for, in clusters that lose agents: parity, quotas, and order by priority."""

from dataclasses import replace
from pathlib import Path

import pytest

from diskless.config import KIB, MIB, ClusterSettings
from diskless.errors import BadRequest, CapacityExceeded, TooFewShards
from diskless.launch.local import LocalCluster
from diskless.model import ClassStatus, ClusterStatus, StripeCounts
from diskless.namespace.tier import Tier
from diskless.policy import priority_of
from tests.conftest import Connect, StartCluster
from tests.support import (
    CALM,
    STRIPED,
    content,
    eventually,
    is_whole,
    kill,
    leader,
    on_loop,
    record_of,
    stripes_of,
)

M, K, AGENTS = 2, 2, 7
LATE = replace(STRIPED, repair_delay_s=3.0)
"""Two agents can be killed before anything is repaired."""


def know_grades(cluster: LocalCluster) -> None:
    """Waits until all agents know what paths ask for."""
    state = leader(cluster).replica.state
    mark = on_loop(cluster, lambda: state.policies.grades_mark)
    eventually(lambda: all(n.roster.grades_mark == mark for n in cluster.nodes.values()))


def class_of(status: ClusterStatus, parity: int) -> ClassStatus:
    (found,) = [one for one in status.classes if one.parity_shards == parity]
    return found


def shapes_of(cluster: LocalCluster, path: str) -> set[tuple[int, int]]:
    return {(s.data_shards, s.parity_shards) for s in stripes_of(cluster, path)}


def test_each_path_gets_the_parity_that_it_asks_for(start: StartCluster, connect: Connect) -> None:
    cluster = start(data_shards=M, parity_shards=K, agents=AGENTS, tuning=CALM)
    client = connect(cluster)
    client.policies.set("/scratch", "parity", "1")
    client.policies.set("/scratch/bare", "parity", "0")
    know_grades(cluster)
    for path in ("/safe", "/scratch/one", "/scratch/bare/none"):
        client.write(path + "/large", content(3 * MIB, path))
        client.write(path + "/small", content(3 * KIB, path))
    client.write_many({f"{at}/{n}": content(9, n) for at in ("/a", "/scratch/b") for n in range(3)})
    assert shapes_of(cluster, "/safe/large") == shapes_of(cluster, "/safe/small") == {(2, 2)}
    assert shapes_of(cluster, "/scratch/one/large") == {(2, 1)}
    assert shapes_of(cluster, "/scratch/one/small") == {(2, 1)}
    assert shapes_of(cluster, "/scratch/bare/none/large") == {(1, 0)}
    assert shapes_of(cluster, "/scratch/bare/none/small") == {(1, 0)}
    assert shapes_of(cluster, "/scratch/b/0") == {(2, 2)}, "a put has the most that any file asks"
    for path in ("/safe", "/scratch/one", "/scratch/bare/none"):
        assert client.read(path + "/large") == content(3 * MIB, path)
        assert client.read(path + "/small") == content(3 * KIB, path)
    status = client.status()
    assert [(one.parity_shards, one.margin) for one in status.classes] == [(2, 2), (1, 1), (0, 0)]
    assert status.margin == K
    assert status.is_protected()


def test_more_parity_than_the_cluster_has_is_refused_in_one_line(
    start: StartCluster, connect: Connect
) -> None:
    client = connect(start(data_shards=M, parity_shards=1, agents=4, tuning=CALM))
    with pytest.raises(BadRequest, match=r"^/a: parity=2 is more than the cluster's k, which is 1"):
        client.policies.set("/a", "parity", "2")


@pytest.mark.parametrize("parity", [0, 1])
def test_as_many_losses_as_a_path_asks_for_pass_and_one_more_loses_it_alone(
    start: StartCluster, connect: Connect, parity: int
) -> None:
    cluster = start(data_shards=M, parity_shards=K, agents=AGENTS, tuning=LATE)
    client = connect(cluster)
    client.policies.set("/scratch", "parity", str(parity))
    know_grades(cluster)
    client.write("/safe", content(4 * MIB, "safe"))
    for n in range(8):
        client.write(f"/scratch/{n}", content(MIB, n))
    eventually(lambda: is_whole(client, AGENTS))

    held = {n: {p.slot for p in stripes_of(cluster, f"/scratch/{n}")[0].places} for n in range(8)}
    voters = range(2 * K + 1)
    leads = leader(cluster).slot
    victims: list[int] = []  # all on agents that have shards of one file; a majority stays
    for slot in sorted(held[0] - {leads}):
        if len(victims) <= parity and sum(v in voters for v in [*victims, slot]) <= K:
            victims.append(slot)
    kill(cluster, *victims)
    assert len(victims) == parity + 1

    lost = {n for n, slots in held.items() if len(slots & {*victims}) > parity}
    assert 0 in lost
    eventually(lambda: client.status().repair.lost_files == len(lost))
    eventually(lambda: client.status().is_protected())
    status = client.status()
    assert class_of(status, parity).margin == -1
    assert class_of(status, parity).stripes.lost == status.repair.lost == len(lost)
    assert class_of(status, K).stripes.lost == 0
    for n in range(8):
        if n in lost:
            with pytest.raises(TooFewShards):
                client.read(f"/scratch/{n}")
        else:
            assert client.read(f"/scratch/{n}") == content(MIB, n)
    assert client.read("/safe") == content(4 * MIB, "safe")

    cluster.revive(*victims)
    eventually(lambda: is_whole(client, AGENTS))
    for n in lost:
        client.delete(f"/scratch/{n}")
    eventually(lambda: client.status().stripes.lost == 0)
    client.write("/scratch/0", content(MIB, "again"))
    assert client.read("/scratch/0") == content(MIB, "again")
    eventually(lambda: class_of(client.status(), parity).margin == parity)


def test_one_loss_of_a_path_with_one_parity_shard_is_repaired(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(data_shards=M, parity_shards=K, agents=AGENTS, tuning=STRIPED)
    client = connect(cluster)
    client.policies.set("/scratch", "parity", "1")
    know_grades(cluster)
    for n in range(6):
        client.write(f"/scratch/{n}", content(MIB, n))
    for victim in (5, 6):
        kill(cluster, victim)
        eventually(lambda: class_of(client.status(), 1).stripes.healthy == 6)
    assert class_of(client.status(), 1).stripes == StripeCounts(total=6, healthy=6)
    for n in range(6):
        assert client.read(f"/scratch/{n}") == content(MIB, n)
        assert shapes_of(cluster, f"/scratch/{n}") == {(2, 1)}


def test_a_file_that_is_moved_to_where_more_is_asked_for_is_written_anew(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(data_shards=M, parity_shards=K, agents=AGENTS, tuning=STRIPED)
    client = connect(cluster)
    client.policies.set("/scratch", "parity", "0")
    client.policies.set("/kept", "priority", "9")
    know_grades(cluster)
    for n in range(3):
        client.write(f"/scratch/tree/{n}", content((1 + 4 * n) * MIB, n))
    client.mkdirs("/kept")
    client.rename("/scratch/tree", "/kept/tree")
    eventually(lambda: client.status().files_thin == 0)
    for n in range(3):
        eventually(lambda n=n: shapes_of(cluster, f"/kept/tree/{n}") == {(2, 2)})
        assert priority_of(record_of(cluster, f"/kept/tree/{n}").grade) == 9
        assert client.read(f"/kept/tree/{n}") == content((1 + 4 * n) * MIB, n)
    eventually(lambda: is_whole(client, AGENTS))


def test_a_policy_that_asks_for_more_holds_for_the_next_write_even_where_it_is_not_known_yet(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(data_shards=M, parity_shards=K, agents=AGENTS, tuning=CALM)
    client = connect(cluster)
    client.policies.set("/scratch", "parity", "0")
    know_grades(cluster)
    client.write("/scratch/before", content(3 * MIB))
    client.policies.remove("/scratch", "parity")
    client.write("/scratch/after", content(3 * MIB))
    assert shapes_of(cluster, "/scratch/after") == {(2, 2)}
    assert shapes_of(cluster, "/scratch/before") == {(1, 0)}


def test_a_quota_is_met_by_puts_renames_and_clones_and_freed_by_deletes(
    start: StartCluster, connect: Connect
) -> None:
    cluster = start(data_shards=M, parity_shards=1, agents=4, tuning=STRIPED)
    client = connect(cluster)
    client.policies.set("/q", "quota", "4MiB")
    client.policies.set("/q/inner", "quota", "1MiB")
    client.write("/q/a", content(3 * MIB))
    client.write("/outside/b", content(2 * MIB))
    text = r"the quota of /q is 4\.0 MiB, it holds 3\.0 MiB and this is 2\.0 MiB more"
    with pytest.raises(CapacityExceeded, match=text):
        client.write("/q/b", content(2 * MIB))
    with pytest.raises(CapacityExceeded, match=text):
        client.rename("/outside/b", "/q/b")
    with pytest.raises(CapacityExceeded, match=text):
        client.clone("/outside", "/q/b")
    with pytest.raises(CapacityExceeded, match=r"the quota of /q is"):
        client.snapshot("/q", "s")
    client.mkdirs("/q/inner")
    with pytest.raises(CapacityExceeded, match=r"the quota of /q/inner is 1\.0 MiB"):
        client.rename("/q/a", "/q/inner/a")
    (inner, outer) = sorted(client.status().quotas, key=lambda one: one.bytes_max)
    assert (outer.path, outer.bytes_used, inner.bytes_used) == ("/q", 3 * MIB, 0)
    client.delete("/q/a")
    client.rename("/outside/b", "/q/b")
    client.rename("/q/b", "/q/c")
    assert client.read("/q/c") == content(2 * MIB)


def test_what_has_priority_9_has_its_margin_back_before_a_fifth_of_all_is_repaired(
    start: StartCluster, connect: Connect
) -> None:
    """64 files of one stripe each, of which every tenth has priority; repair is slow enough to be
    watched, as what it has done is asked for after each command that moves shards."""
    cluster = start(data_shards=M, parity_shards=1, agents=4, tuning=STRIPED)
    client = connect(cluster)
    client.policies.set("/first", "priority", "9")
    client.policies.set("/last", "priority", "0")
    know_grades(cluster)
    every = [f"/{'first' if n % 10 == 0 else 'last' if n % 2 else 'usual'}/{n}" for n in range(64)]
    for path in every:
        client.write(path, content(256 * KIB, path))
    at = {path: stripes_of(cluster, path)[0].id for path in every}
    eventually(lambda: is_whole(client, 4))
    victim = next(slot for slot in cluster.nodes if slot != leader(cluster).slot)
    moved: list[str] = []
    node = leader(cluster)
    state = node.replica.state
    move = state.ledger.move

    def watched(id_: str, places: object) -> None:
        moved.append(id_)
        move(id_, places)  # type: ignore[arg-type]

    on_loop(cluster, lambda: setattr(state.ledger, "move", watched))
    ailing = set(on_loop(cluster, lambda: [*state.health.stripes_on(victim)]))
    cluster.kill(victim)
    cluster.revive(victim)  # empty
    eventually(lambda: is_whole(client, 4), 60)
    order = [id_ for id_ in dict.fromkeys(moved) if id_ in ailing]
    assert {*order} == ailing
    firsts = [order.index(at[path]) for path in every if path[:6] == "/first" and at[path] in order]
    lasts = [order.index(at[path]) for path in every if path[:5] == "/last" and at[path] in order]
    assert firsts
    assert max(firsts) < len(order) / 5
    assert min(lasts) > len(order) / 3


def test_after_a_cold_start_the_highest_priority_is_whole_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grades come from the policies, which the tier has; whoever wrote the files first."""
    settings = ClusterSettings(
        name="cold-start", agents=4, data_shards=2, parity_shards=1, tuning=STRIPED,
        memory_bytes=128 * MIB,
    )  # fmt: skip
    tier = f"file://{tmp_path}/tier"
    names = [f"/{'first' if n % 10 == 0 else 'last' if n % 2 else 'usual'}/{n}" for n in range(60)]
    with LocalCluster(settings, tier=tier) as cluster, cluster.connect() as client:
        for path in names:
            client.write(path, content(300 * KIB, path))
        client.policies.set("/first", "priority", "9")
        client.policies.set("/last", "priority", "0")
        client.policies.set("/last", "parity", "0")
        ids = {client.stat(path).id: path for path in names}
        client.tier.flush()
    warmed: list[int] = []
    warm = Tier.warm

    def watched(self: Tier, id_: int) -> None:
        if id_ in self.cold:
            warmed.append(id_)
        warm(self, id_)

    monkeypatch.setattr(Tier, "warm", watched)
    with LocalCluster(settings, restore=tier) as cluster, cluster.connect() as client:
        eventually(lambda: client.status().tier.hydration.files_left == 0, 60)
        order = [ids[id_].split("/")[1] for id_ in dict.fromkeys(warmed)]
        assert order == ["first"] * 6 + ["usual"] * 24 + ["last"] * 30
        assert shapes_of(cluster, "/first/0") == {(2, 1)}
        assert shapes_of(cluster, "/last/1") == {(1, 0)}
        for path in names:
            assert client.read(path) == content(300 * KIB, path)
