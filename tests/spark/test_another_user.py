"""Another user of the host on a dead agent's gateway: Spark's side tells it nothing of use."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from diskless.client import descriptor
from diskless.protocol.messages import Peer
from tests.cluster.test_another_user import VICTIM, Doors, check_heard, replay_at_gateways
from tests.conftest import Connect, StartCluster
from tests.impostor import NOBODY, Stranger
from tests.support import BRISK

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process as another")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may write to."""
    with TemporaryDirectory(prefix="diskless-public-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


def file_system(spark: SparkSession, known: descriptor.Descriptor, file: Path) -> Any:
    descriptor.save(known, file)
    hadoop: Any = spark._jvm.org.apache.hadoop  # type: ignore[union-attr]
    conf = hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    conf.unset("fs.diskless.gateways")
    conf.set("fs.diskless.descriptor", str(file))
    conf.set("fs.diskless.token", known.token)
    conf.set("fs.diskless.timeout", "20s")
    return hadoop.fs.FileSystem.newInstance(hadoop.fs.Path("diskless:///").toUri(), conf)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_an_impostor_of_another_user_hears_nothing_of_use_from_the_jvm(
    spark: SparkSession,
    start: StartCluster,
    connect: Connect,
    public: Path,
    tmp_path: Path,
    tls: bool,
) -> None:
    cluster = start(agents=7, tuning=BRISK, tls=tls)
    connect(cluster).write("/q/a", b"1")
    doors = Doors(cluster, VICTIM)
    known = descriptor.load(cluster.settings.name)
    decoy = "" if tls else str(public / "agent.sock")
    there = [Peer(VICTIM, f"127.0.0.1:{doors.gateway}", "", "here", True)]
    if decoy:
        there.append(Peer(VICTIM, "", decoy, "here", True))
    living = [
        msgspec.structs.replace(peer, socket="") for peer in known.gateways if peer.slot != VICTIM
    ]
    path = spark._jvm.org.apache.hadoop.fs.Path("/q/a")  # type: ignore[union-attr]
    with Stranger(gateway=doors.gateway, **({"socket": decoy} if decoy else {})) as stranger:
        assert stranger.begun["uid"] == NOBODY
        tokens = []
        for number, place in enumerate(there):
            for seeds, alone in (([place], True), ([place, living[0]], False)):
                token = cluster.keyring.client(f"q{number}-{alone:d}", paths=["/q"])
                tokens.append(token)
                mine = msgspec.structs.replace(
                    known, key="", authority_key="", token=token.token, gateways=seeds
                )
                fs = file_system(spark, mine, tmp_path / "own" / f"{token.claims.name}.json")
                if alone:
                    with pytest.raises(Exception, match="is not an agent of cluster"):
                        fs.exists(path)
                else:
                    assert fs.exists(path)
        heard = stranger.heard()
    said = [one for one in heard["gateway"] + heard["socket"] if one]
    assert len(said) >= len(there)
    check_heard(cluster, said)
    for token in tokens:
        assert not any(token.key in one or token.token.encode() in one for one in said)
    for one in said:
        replay_at_gateways(cluster, one)
