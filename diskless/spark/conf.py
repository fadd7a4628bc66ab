"""What Spark must be told to find `diskless://` and a cluster.

The secret travels under a key that contains `secret`, which Spark redacts in its UI and logs.
"""

from pathlib import Path
from typing import TypeVar

from diskless.client.descriptor import Descriptor, descriptor_path, resolve
from diskless.errors import NoCluster
from diskless.spark.jar import jar

FILE_SYSTEM = "io.diskless.spark.DisklessFileSystem"
ABSTRACT_FILE_SYSTEM = "io.diskless.spark.DisklessFs"
CHECKPOINT_FILE_MANAGER = "io.diskless.spark.DisklessCheckpointFileManager"

PREFIX = "spark.hadoop.fs.diskless."
JARS = "spark.jars"

Builder = TypeVar("Builder")


def properties(cluster: str | None = None, *, by_descriptor: bool = False) -> dict[str, str]:
    """The properties that make `diskless:///` mean a cluster, everywhere in an application.

    `cluster` is a name, HOST:PORT or a URI; None is the default one. With `by_descriptor`
    they name the descriptor's file instead of carrying the secret: every host that runs a
    driver or an executor must have it there. Raises NoCluster, SparkUnusable.
    """
    found = resolve(cluster or "")
    if not found.gateways:
        raise NoCluster(f"cluster {found.name} has no gateways: start it with `diskless up`")
    settings = {
        JARS: str(jar()),
        f"{PREFIX}impl": FILE_SYSTEM,
        "spark.hadoop.fs.AbstractFileSystem.diskless.impl": ABSTRACT_FILE_SYSTEM,
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
    }
    return settings | (_by_descriptor(found) if by_descriptor else _by_address(found))


def configure(builder: Builder, cluster: str | None = None) -> Builder:
    """Adds `properties(cluster)` to a SparkSession.builder and gives it back.

    Jars that the builder names already stay. It must be the first session of the process: a
    JVM that runs already takes no more jars.
    """
    settings = properties(cluster)
    options = getattr(builder, "_options", {})
    jars = [path for path in options.get(JARS, "").split(",") if path and path != settings[JARS]]
    settings[JARS] = ",".join([*jars, settings[JARS]])
    for key, value in settings.items():
        builder = builder.config(key, value)  # type: ignore[attr-defined]
    return builder


def _by_address(found: Descriptor) -> dict[str, str]:
    return {
        f"{PREFIX}name": found.name,
        f"{PREFIX}cluster": found.cluster,
        f"{PREFIX}gateways": ",".join(peer.gateway for peer in found.gateways),
        f"{PREFIX}secret": found.secret,
    }


def _by_descriptor(found: Descriptor) -> dict[str, str]:
    return {f"{PREFIX}descriptor": str(Path(descriptor_path(found.name)).resolve())}
