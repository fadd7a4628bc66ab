"""Ray, Spark standalone and diskless, side by side, from nothing but pip's packages.

    python cluster/launch.py up            # all of it on this one host
    spark-submit --properties-file ~/.diskless/launch/spark-defaults.conf job.py
    python cluster/launch.py down

On several hosts, with the same --config on all of them:

    first host    launch.py head                         # Ray's head, Spark's master
    every host    launch.py worker --host ITS-ADDRESS    # a Ray node and Spark workers
    first host    launch.py agents                       # diskless, and spark-defaults.conf

A host that died comes back by the same command, the first one by both of its own. If it never
comes back, name another first host in the configuration and go through all three again, host
by host: each step waits until no data is at risk. See docs/hosts.md.

What was started on a host is remembered in its --state directory, by which `status` shows
it and `down` ends it. Nothing else is ever ended.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pyspark
from launch_config import Config, load_config
from launch_state import State

import diskless.spark
from diskless.client import connect, descriptor
from diskless.errors import DisklessError, LaunchFailed
from diskless.launch import private_ray, sessions
from diskless.launch.record import record_of
from diskless.operate import rolling
from diskless.spark.jar import find_java

READY_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 10.0
REGISTERED = "Successfully registered with master"
"""What a Spark worker says when it has found its master."""
RAY_RUNS = "Ray runtime started"
MASTER_TRIES_MAX = 1_000_000
"""How often a Spark worker looks for a master that is gone, about once a minute."""
NEED_JAVA = ("up", "head", "worker", "agents")
"""What runs can be looked at, and ended, without."""
RAY_OLD = "ray-old"
"""This host's node of an earlier head, while its agents serve."""


class Launcher:
    def __init__(self, config: Config, state: State) -> None:
        self.config = config
        self._state = state

    def head(self) -> None:
        """Ray's head and Spark's master: what is missing.

        What an earlier head's node holds here goes on.
        """
        head = self.config.head
        if not self._token.exists():
            private_ray.write_token(self._token)
        if not self._runs("ray", self.config.ray_address):
            self._check_memory()
            self._set_aside()
            ports = ("--port", str(head.ray_port), "--node-ip-address", head.host)
            env = self.ray_env() | self._ray_storage()
            command = [*_RAY, "--head", *ports, *_RAY_OPTIONS]
            self._start("ray", command, env, self.config.ray_address)
        if not self._runs("spark-master", self.config.master):
            master = [
                *("org.apache.spark.deploy.master.Master", "--host", head.host),
                *("--port", str(head.spark_port), "--webui-port", str(head.spark_ui_port)),
            ]
            env = self._spark_env(head.host)
            self._start("spark-master", [_SPARK_CLASS, *master], env, self.config.master)
        self._await_port("ray", head.ray_port)
        self._await_port("spark-master", head.spark_port)

    def worker(self, host: str, *, spark: bool = True) -> None:
        """This host's Ray node, unless it is the head's, and its Spark workers: what is missing.

        The node of an earlier head is ended, with its agents, when all data survives that.
        """
        if host != self.config.head.host:
            if not self._token.exists():
                raise LaunchFailed(f"{self._token} is missing: copy the head's token there")
            self._set_aside()
        self._end_old()
        if host != self.config.head.host and self._state.alive("ray") is None:
            join = ("--address", self.config.ray_address, "--node-ip-address", host)
            command = [*_RAY, *join, *_RAY_OPTIONS]
            self._start("ray", command, self.ray_env(), self.config.ray_address)
        workers = self._spark_workers(host) if spark else []
        if host != self.config.head.host:
            self._await("ray", "did not join", lambda: self._says("ray", RAY_RUNS))
        for name in workers:
            self._await(
                name, "did not find its master", lambda name=name: self._says(name, REGISTERED)
            )

    def _spark_workers(self, host: str) -> list[str]:
        """Starts those that do not run for this master; gives the names of all."""
        spark = self.config.spark
        names = [f"spark-worker-{number}" for number in range(spark.workers)]
        for name in names:
            known = self._state.alive(name)
            if known is not None and known.head == self.config.master:
                continue
            if known is not None:
                self._state.stop(name, known)
                print(f"ended {name} of {known.head}")
            command = [
                *(_SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", self.config.master),
                *("--host", host, "--cores", str(spark.cores), "--memory", spark.memory),
                *("--webui-port", "0", "--work-dir", str(self._state.directory / name)),
            ]
            self._start(name, command, self._spark_env(host), self.config.master)
        return names

    def agents(self) -> None:
        """The diskless agents, and the properties with which Spark finds them.

        In a cluster that serves, those that are down; if it had another head, on this one's Ray.
        """
        chosen = self.config.diskless
        self._state.spark_defaults.touch(mode=0o600)  # From here on `down` has agents to end.
        if self._known() is not None:
            self._diskless(
                *("adopt", "--cluster", chosen.name, "--ray-address", self.config.ray_address)
            )
        self._diskless(
            *("up", "--name", chosen.name, "--ray-address", self.config.ray_address),
            *("--agents", str(chosen.agents), "--memory", chosen.memory, "--cache", chosen.cache),
            *("-m", str(chosen.data_shards), "-k", str(chosen.parity_shards)),
            *chosen.security,
        )
        found = {"spark.master": self.config.master} | diskless.spark.properties(chosen.name)
        path = self._state.spark_defaults
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{key} {value}\n" for key, value in found.items())
        print(f"spark-submit --properties-file {path} job.py")

    def down(self, *, discard: bool) -> None:
        """Ends what was started here, the agents first. Raises if they hold files."""
        if self._state.spark_defaults.exists():
            name = self.config.diskless.name
            if descriptor.descriptor_path(name).exists():
                self._diskless("down", "--cluster", name, *(["--discard"] if discard else []))
            self._state.spark_defaults.unlink()
        for name, session in reversed(list(self._state.sessions())):
            self._state.stop(name, session)
            print(f"ended {name}")
        for memory in (self._gcs, self._spark_recovery):
            shutil.rmtree(memory, ignore_errors=True)

    def status(self) -> bool:
        """Shows what was started here; whether all of it runs."""
        well = True
        for name, session in self._state.sessions():
            alive = sessions.is_alive(session)
            well &= alive
            print(f"{name:18} {'runs' if alive else 'HAS ENDED'}  pid {session.pid}")
        return well

    def show_env(self) -> None:
        for name, value in self.ray_env().items():
            if name.startswith("RAY_"):
                print(f"export {name}={shlex.quote(value)}")

    def ray_env(self) -> dict[str, str]:
        """What whoever speaks to this Ray must have in the environment."""
        base = private_ray.environment(str(self._token), os.environ)
        if not self.config.head.host.startswith("127."):
            del base[private_ray.LOOPBACK_ONLY]
        return private_ray.with_package(base | self.config.ray.tls)

    @property
    def _token(self) -> Path:
        chosen = self.config.ray.token
        return Path(chosen).expanduser() if chosen else self._state.directory / "ray.token"

    def _spark_env(self, host: str) -> dict[str, str]:
        env = dict(os.environ) | {
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            # If its port is taken it shall fail: the next one is not where workers look. What
            # it knows of applications outlives it, or a new one would end their executors. Its
            # REST door has one port for all masters of a host, without which none would begin.
            "SPARK_MASTER_OPTS": "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false "
            "-Dspark.deploy.recoveryMode=FILESYSTEM "
            + shlex.quote(f"-Dspark.deploy.recoveryDirectory={self._spark_recovery}"),
            # Or they would give up after some minutes, and their executors with them.
            "SPARK_WORKER_OPTS": f"-Dspark.worker.maxRegistrationRetries={MASTER_TRIES_MAX}",
        }
        return private_ray.with_package(env)

    # Changing heads.

    def _known(self) -> descriptor.Descriptor | None:
        """What this host knows of the diskless cluster."""
        name = self.config.diskless.name
        return descriptor.load(name) if descriptor.descriptor_path(name).exists() else None

    def _check_memory(self) -> None:
        """A control store that has forgotten its nodes tells them to die, all at once."""
        known = self._known()
        if known is None or record_of(known).requested != self.config.ray_address:
            for name, memory in (("ray", self._gcs), ("spark-master", self._spark_recovery)):
                if self._state.alive(name) is None:  # of clusters that are no more
                    shutil.rmtree(memory, ignore_errors=True)
        elif not self._gcs.exists() and _answers(known.name):
            raise LaunchFailed(
                f"agents of cluster {known.name!r} live on the Ray that was at "
                f"{self.config.ray_address} and would die with a new one there: give the head "
                "another ray_port, on all hosts (see docs/hosts.md)"
            )

    def _set_aside(self) -> None:
        """Keeps the node of an earlier head apart; one of a still earlier head ends before."""
        known = self._state.alive("ray")
        if known is not None and known.head != self.config.ray_address:
            self._end_old()
            self._state.rename("ray", RAY_OLD)

    def _end_old(self) -> None:
        """Ends the node of an earlier head. Raises LaunchFailed if that would risk data."""
        old = self._state.alive(RAY_OLD)
        if old is None:
            return
        known = self._known()
        if known is None:
            raise LaunchFailed(
                f"{descriptor.descriptor_path(self.config.diskless.name)} is missing: copy it "
                "from the host where agents were started, to see when this Ray node may end"
            )
        with connect(known.name) as client:
            pids = {process.pid for process in sessions.members(old.pid)}
            rolling.wait_expendable(client, pids, "before this host's agents can be ended")
        self._state.stop(RAY_OLD, old)
        print(f"ended the Ray node of the head {old.head}, with its agents")

    @property
    def _gcs(self) -> Path:
        return self._state.directory / "gcs"

    @property
    def _spark_recovery(self) -> Path:
        return self._state.directory / "spark-recovery"

    def _ray_storage(self) -> dict[str, str]:
        """Lets Ray's control store remember its nodes and actors through a restart."""
        return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self._gcs)}

    # Processes.

    def _runs(self, name: str, head: str) -> bool:
        known = self._state.alive(name)
        if known is None or known.head != head:
            return False
        print(f"{name} runs already")
        return True

    def _start(self, name: str, command: list[str], env: dict[str, str], head: str) -> None:
        self._state.start(name, command, env, head)
        print(f"started {name}", flush=True)

    def _diskless(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "diskless.cli", *arguments]
        if subprocess.run(command, env=self.ray_env(), check=False).returncode:
            raise LaunchFailed(f"`diskless {arguments[0]}` failed, see above")

    def _await_port(self, name: str, port: int) -> None:
        address = (self.config.head.host, port)
        self._await(name, f"does not listen on port {port}", lambda: _listens(address))

    def _await(self, name: str, complaint: str, done: Any) -> None:
        def settled() -> bool:
            self._state.check(name)
            return bool(done())

        if not sessions.wait(settled, READY_TIMEOUT_S):
            raise LaunchFailed(f"{name} {complaint}: {sessions.tail(self._state.log(name))}")

    def _says(self, name: str, what: str) -> bool:
        return what in self._state.log(name).read_text(errors="replace")


_RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
_RAY_OPTIONS = [
    *("--disable-usage-stats", "--log-style", "record", "--log-color", "false"),
    *("--include-log-monitor", "false"),
    *("--object-store-memory", str(private_ray.OBJECT_STORE_BYTES)),
]
_SPARK_CLASS = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return False
    return True


def _answers(name: str) -> bool:
    with suppress(DisklessError), connect(name, timeout_s=ANSWER_TIMEOUT_S) as client:
        client.status()
        return True
    return False


# The command line.


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "path", type=click.Path(path_type=Path), metavar="FILE",
    default=Path(__file__).with_name("cluster.toml"), help="See cluster.toml, the default.",
)  # fmt: skip
@click.option(
    "--state", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    default=descriptor.home() / "launch", help="Remembers what was started on this host.",
)  # fmt: skip
@click.pass_context
def main(context: click.Context, path: Path, state: Path) -> None:
    """Start Ray, Spark standalone and diskless beside each other, on this host or on many."""
    if context.invoked_subcommand in NEED_JAVA:
        find_java()
    context.obj = Launcher(load_config(path), State(state))


@main.command()
@click.pass_obj
def up(launcher: Launcher) -> None:
    """Everything on this host: head, worker and agents."""
    launcher.head()
    launcher.worker(launcher.config.head.host)
    launcher.agents()


@main.command()
@click.pass_obj
def head(launcher: Launcher) -> None:
    """Ray's head and Spark's master, on the first host."""
    launcher.head()


@main.command()
@click.option("--host", help="This host's address, as the others reach it; default: the head's.")
@click.option("--ray-only", is_flag=True, help="Leave the Spark workers as they are.")
@click.pass_obj
def worker(launcher: Launcher, host: str | None, ray_only: bool) -> None:
    """A Ray node and Spark workers, on every host.

    If they belong to an earlier head, they are ended first; a Ray node only when everything
    survives k losses without this host's agents.
    """
    launcher.worker(host or launcher.config.head.host, spark=not ray_only)


@main.command()
@click.pass_obj
def agents(launcher: Launcher) -> None:
    """The diskless agents on all Ray nodes, and spark-defaults.conf."""
    launcher.agents()


@main.command()
@click.pass_obj
def status(launcher: Launcher) -> None:
    """What was started on this host, and whether it runs."""
    sys.exit(0 if launcher.status() else 1)


@main.command()
@click.option("--discard", is_flag=True, help="Also if the agents hold files: they are lost.")
@click.pass_obj
def down(launcher: Launcher, discard: bool) -> None:
    """End what was started on this host, the agents first."""
    launcher.down(discard=discard)


@main.command()
@click.pass_obj
def env(launcher: Launcher) -> None:
    """Print what `diskless chaos` and `ray` need to reach this Ray: eval it in a shell."""
    launcher.show_env()


if __name__ == "__main__":
    try:
        main()
    except DisklessError as error:
        print(f"launch: {error.reason}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
