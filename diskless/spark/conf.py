"""What Spark must be told to find `diskless://` and a cluster.

The secret travels under a key that contains `secret`, which Spark redacts in its UI and logs.
"""

import atexit
import os
import re
import tempfile
from pathlib import Path
from typing import TypeVar

from diskless.client.descriptor import Descriptor, descriptor_path, resolve
from diskless.errors import NoCluster
from diskless.spark.jar import jar

FILE_SYSTEM = "io.diskless.spark.DisklessFileSystem"
ABSTRACT_FILE_SYSTEM = "io.diskless.spark.DisklessFs"
CHECKPOINT_FILE_MANAGER = "io.diskless.spark.DisklessCheckpointFileManager"

PREFIX = "spark.hadoop.fs.diskless."
SECRET = f"{PREFIX}secret"
JARS = "spark.jars"
SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"

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
    if not _jvm_runs():  # pyspark would show everything on its command line
        _whisper(SECRET, settings.pop(SECRET))
    options = getattr(builder, "_options", {})
    jars = [path for path in options.get(JARS, "").split(",") if path and path != settings[JARS]]
    settings[JARS] = ",".join([*jars, settings[JARS]])
    for key, value in settings.items():
        builder = builder.config(key, value)  # type: ignore[attr-defined]
    return builder


def _jvm_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _whisper(key: str, value: str) -> None:
    """Tells a JVM that is to be started a property, in a file that only this user can read."""
    handle, path = tempfile.mkstemp(prefix="diskless-", suffix=".conf")  # 0600
    atexit.register(Path(path).unlink, missing_ok=True)
    with os.fdopen(handle, "w") as file:
        file.write(f"{key} {value}\n")
    given = _WHISPERED.sub("", os.environ.get(SUBMIT_ARGS, "pyspark-shell"))
    os.environ[SUBMIT_ARGS] = f"--load-spark-defaults --properties-file {path} {given}"


_WHISPERED = re.compile(r"--load-spark-defaults --properties-file \S+/diskless-\w+\.conf ")
"""What an earlier call has added."""


def _by_address(found: Descriptor) -> dict[str, str]:
    return {
        f"{PREFIX}name": found.name,
        f"{PREFIX}cluster": found.cluster,
        f"{PREFIX}gateways": ",".join(peer.gateway for peer in found.gateways),
        SECRET: found.secret,
    }


def _by_descriptor(found: Descriptor) -> dict[str, str]:
    return {f"{PREFIX}descriptor": str(Path(descriptor_path(found.name)).resolve())}
