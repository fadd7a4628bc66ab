"""What Spark must be told to find `diskless://` and a cluster.

Spark's configuration can be read by all who can read the application's: it never holds more
than a client's token, bound to paths, whatever the descriptor at hand could do. The token
travels under a key that contains `token`, which Spark redacts in its UI and logs.
"""

import atexit
import base64
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from diskless import paths
from diskless.client import connect
from diskless.client.descriptor import Descriptor, home, resolve, save
from diskless.errors import AlreadyExists, BadRequest, DisklessError, NoCluster, Unauthorized
from diskless.identity.claims import Credential, Role, parse_token
from diskless.spark.jar import jar

FILE_SYSTEM = "io.diskless.spark.DisklessFileSystem"
ABSTRACT_FILE_SYSTEM = "io.diskless.spark.DisklessFs"
CHECKPOINT_FILE_MANAGER = "io.diskless.spark.DisklessCheckpointFileManager"

QUERY_LISTENER = "io.diskless.spark.DisklessQueryListener"

LISTENERS = "spark.sql.streaming.streamingQueryListeners"
PREFIX = "spark.hadoop.fs.diskless."
TOKEN = f"{PREFIX}token"
JARS = "spark.jars"
SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
TOKEN_NAME = "spark"
REGISTER_TIMEOUT_S = 3.0

log = logging.getLogger(__name__)

Builder = TypeVar("Builder")


class Grant(Struct, frozen=True, kw_only=True):
    """What Spark may do. By default all that a client can, and without an end: a stream must
    not die at night."""

    paths: tuple[str, ...] = ("/",)
    writes: bool = True
    expires_s: int = 0
    """Unix time; 0 is never."""
    name: str = TOKEN_NAME
    """For the audit, and to revoke it by."""


def properties(
    cluster: str | None = None,
    *,
    token: str | None = None,
    grant: Grant | None = None,
    by_descriptor: bool = False,
) -> dict[str, str]:
    """The properties that make `diskless:///` mean a cluster, everywhere in an application.

    `cluster` is a name, HOST:PORT or a URI; None is the default one. They hold `token`, or one
    that is made for `grant` with the key in the operator's descriptor: the same grant gives the
    same token. Without either it is that of $DISKLESS_TOKEN, that of the descriptor, or one
    for all paths. With `by_descriptor` they name a client's descriptor instead, which is
    written for it: every host that runs a driver or an executor must have that file there.
    Raises NoCluster, SparkUnusable, BadRequest, AlreadyExists if the grant's name was revoked,
    and Unauthorized if there is neither a client's token nor a key to make one.
    """
    if token and grant is not None:
        raise BadRequest("a token says itself what it is for: give it, or paths, not both")
    found = resolve(cluster or "", token=token or "")
    if not found.gateways:
        raise NoCluster(f"cluster {found.name} has no gateways: start it with `diskless up`")
    credential = _credential(found, grant)
    settings = {
        JARS: str(jar()),
        f"{PREFIX}impl": FILE_SYSTEM,
        "spark.hadoop.fs.AbstractFileSystem.diskless.impl": ABSTRACT_FILE_SYSTEM,
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
        LISTENERS: with_listener(_default(LISTENERS)),
    }
    told = _by_descriptor if by_descriptor else _by_address
    return settings | told(found, credential)


def configure(
    builder: Builder,
    cluster: str | None = None,
    *,
    token: str | None = None,
    path: str | Sequence[str] | None = None,
    rights: str = "rw",
    expires_s: int = 0,
    token_name: str = TOKEN_NAME,
) -> Builder:
    """Adds `properties(cluster)` to a SparkSession.builder and gives it back.

    `token` is a client's. Without one, one is made from the operator's descriptor, for `path`
    (one or several, all if there is none) with `rights` "r" or "rw" until `expires_s` (Unix
    time; 0 is never). Jars and listeners of queries that the builder names already stay, or those
    of spark-defaults.conf if it names none. It must be the first session of the process: a JVM that
    runs already takes no more jars.
    """
    grant = None
    if path is not None or (rights, expires_s, token_name) != ("rw", 0, TOKEN_NAME):
        grant = Grant(
            paths=(path,) if isinstance(path, str) else tuple(path or ("/",)),
            writes=may_write(rights),
            expires_s=expires_s,
            name=token_name,
        )
    settings = properties(cluster, token=token, grant=grant)
    if not _jvm_runs():  # pyspark would show everything on its command line
        _whisper(TOKEN, settings.pop(TOKEN))
    options = getattr(builder, "_options", {})
    named = options[JARS] if JARS in options else _default(JARS)
    jars = [path for path in named.split(",") if path and path != settings[JARS]]
    settings[JARS] = ",".join([*jars, settings[JARS]])
    if options.get(LISTENERS):
        settings[LISTENERS] = with_listener(options[LISTENERS])
    for key, value in settings.items():
        builder = builder.config(key, value)  # type: ignore[attr-defined]
    return builder


def with_listener(given: str) -> str:
    """Listeners of queries, and ours behind them: Spark takes one list, and not two."""
    others = [name for one in given.split(",") if (name := one.strip()) != QUERY_LISTENER and name]
    return ",".join([*others, QUERY_LISTENER])


def may_write(rights: str) -> bool:
    """Raises BadRequest for what are no rights."""
    if rights not in ("r", "rw"):
        raise BadRequest(f"rights are 'r' or 'rw', not {rights!r}")
    return rights == "rw"


def _credential(found: Descriptor, grant: Grant | None) -> Credential:
    if grant is not None or not found.token:
        grant = grant or Grant()
        made = found.keyring.client(
            grant.name,
            paths=[paths.normalize(path) for path in grant.paths],
            writes=grant.writes,
            expires_s=grant.expires_s,
        )
        _register(found, made)
        return made
    credential = parse_token(found.token)
    claims = credential.claims
    if claims.role is not Role.CLIENT:
        raise Unauthorized(f"Spark gets a client's token, and {claims.name!r} is {claims.role}")
    return credential


def _register(found: Descriptor, made: Credential) -> None:
    """So that `diskless token ls` shows it, if that can be done now: it is good without. Raises
    AlreadyExists if its name was revoked, and it is good for nothing."""
    name = made.claims.name
    try:
        with connect(found.name, timeout_s=REGISTER_TIMEOUT_S) as client:
            try:
                client.register_token(made.claims)
            except AlreadyExists:
                if any(known.name == name and known.revoked_ms for known in client.tokens()):
                    raise
                log.warning(
                    "token not listed name=%s: another has that name, and would be revoked with it",
                    name,
                )
    except AlreadyExists:
        raise
    except DisklessError as error:
        log.warning("token not listed name=%s why=%s", name, error)


def _default(key: str) -> str:
    """What spark-defaults.conf says of a list, which a setting of ours would replace. As Java reads
    properties: the last one counts."""
    from pyspark.find_spark_home import _find_spark_home

    directory = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    try:
        text = (Path(directory) / "spark-defaults.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    line = rf"^[ \t]*{re.escape(key)}(?:[ \t]*[=:][ \t]*|[ \t]+)(\S.*?)[ \t]*$"
    found = re.findall(line, _CONTINUED.sub("", text), re.MULTILINE)
    return str(found[-1]) if found else ""


_CONTINUED = re.compile(r"\\\n[ \t]*")


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


def _by_address(found: Descriptor, credential: Credential) -> dict[str, str]:
    told = {
        f"{PREFIX}name": found.name,
        f"{PREFIX}gateways": ",".join(peer.gateway for peer in found.gateways),
        TOKEN: credential.token,
    }
    if found.authority:
        told[f"{PREFIX}authority"] = base64.b64encode(found.authority.encode()).decode()
        told |= {f"{PREFIX}byHost": "true"} if found.by_host else {}
    return told


def _by_descriptor(found: Descriptor, credential: Credential) -> dict[str, str]:
    """Never the operator's own, which holds the cluster's key."""
    client = Descriptor(
        cluster=credential.claims.cluster,
        name=found.name,
        token=credential.token,
        authority=found.authority,
        by_host=found.by_host,
        gateways=found.gateways,
    )
    file = re.sub(r"[^A-Za-z0-9._-]", "-", f"{found.name}-{credential.claims.name}.json")
    return {f"{PREFIX}descriptor": str(save(client, home() / "clients" / file).resolve())}
