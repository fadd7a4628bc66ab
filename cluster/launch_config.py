"""What launch.py is told: cluster.toml, which documents every setting, as structs."""

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from diskless.config import ClusterSettings, parse_bytes
from diskless.errors import BadSettings, DisklessError

Port = Annotated[int, Meta(ge=1, le=65535)]


class Head(Struct, forbid_unknown_fields=True):
    host: Annotated[str, Meta(pattern=r"^[^\s/]+$")] = "127.0.0.1"
    ray_port: Port = 6380
    spark_port: Port = 7077
    spark_ui_port: Port = 8080

    def check(self) -> None:
        ports = [self.ray_port, self.spark_port, self.spark_ui_port]
        twice = {port for port in ports if ports.count(port) > 1}
        if twice:
            raise BadSettings(f"[head] gives port {min(twice)} to two services")


class Ray(Struct, forbid_unknown_fields=True):
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    @property
    def tls(self) -> dict[str, str]:
        """What encrypts Ray's own traffic, as its processes want it in their environment."""
        if not self.tls_cert:
            return {}
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": self.tls_cert,
            "RAY_TLS_SERVER_KEY": self.tls_key,
            "RAY_TLS_CA_CERT": self.tls_ca,
        }

    def check(self) -> None:
        paths = [self.tls_cert, self.tls_key, self.tls_ca]
        if any(paths) and not all(path.startswith("/") for path in paths):
            raise BadSettings("[ray] needs whole paths for tls_cert, tls_key and tls_ca, or none")


class Spark(Struct, forbid_unknown_fields=True):
    workers: Annotated[int, Meta(ge=0)] = 2
    cores: Annotated[int, Meta(ge=1)] = 1
    memory: Annotated[str, Meta(pattern=r"^(?i:\d+[kmgt]b?)$")] = "1g"


class Diskless(Struct, forbid_unknown_fields=True):
    name: str = "default"
    agents: int = 6
    data_shards: int = 4
    parity_shards: int = 2
    memory: str = "256MiB"
    cache: str = "0"
    tls: bool | None = None
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    chaos: bool = False

    @property
    def security(self) -> list[str]:
        """What `diskless up` is told of TLS and of chaos."""
        options = [] if self.tls is None else ["--tls" if self.tls else "--no-tls"]
        for option, path in (
            ("--tls-cert", self.tls_cert),
            ("--tls-key", self.tls_key),
            ("--tls-ca", self.tls_ca),
        ):
            options += (option, path) if path else ()
        return [*options, *(["--chaos"] if self.chaos else [])]

    def check(self) -> None:
        ClusterSettings(
            name=self.name,
            agents=self.agents,
            data_shards=self.data_shards,
            parity_shards=self.parity_shards,
            memory_bytes=parse_bytes(self.memory),
            cache=self.cache,
            tls=self.tls,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_ca=self.tls_ca,
        ).validate()


class Config(Struct, forbid_unknown_fields=True):
    head: Head = field(default_factory=Head)
    ray: Ray = field(default_factory=Ray)
    spark: Spark = field(default_factory=Spark)
    diskless: Diskless = field(default_factory=Diskless)

    @property
    def ray_address(self) -> str:
        return f"{self.head.host}:{self.head.ray_port}"

    @property
    def master(self) -> str:
        return f"spark://{self.head.host}:{self.head.spark_port}"


def load_config(path: Path) -> Config:
    """Raises BadSettings, naming the file and what is wrong in it."""
    try:
        config = msgspec.convert(tomllib.loads(path.read_text()), Config)
        config.head.check()
        config.ray.check()
        config.diskless.check()
    except (
        OSError,
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        msgspec.ValidationError,
        DisklessError,
    ) as error:
        raise BadSettings(f"{path}: {error}") from error
    return config
