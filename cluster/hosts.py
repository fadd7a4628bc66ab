"""Several hosts on one machine: what launch.py does on real ones, on network namespaces.

    python cluster/hosts.py up --hosts 5        # five hosts, each with Ray, Spark and an agent
    python cluster/hosts.py exec 2 -- diskless status
    python cluster/hosts.py cut 4               # its cable is pulled ...
    python cluster/hosts.py join 4              # ... and put back
    python cluster/hosts.py shape 1gbit         # all cables carry so much from now on
    python cluster/hosts.py kill 3 4            # every process on two hosts, at once
    python cluster/hosts.py end 2 deploy.worker # only those whose command line has that
    python cluster/hosts.py back 3 4            # what launch.py starts there, again
    python cluster/hosts.py rehead 2            # the first host is lost: another takes its part
    python cluster/hosts.py down

A host has an address, a name and a /run of its own, so that nothing but its cable connects it
with the others; disks are shared, as if by NFS. Host 1 is the head: Ray's head and Spark's
master are there. Needs root, iproute2, and a kernel that has namespaces and bridges.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from diskless.client.descriptor import HOME_VARIABLE
from diskless.errors import BadRequest, DisklessError, LaunchFailed
from diskless.launch import sessions
from diskless.launch.record import Session

BRIDGE = "dskbr"
NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
"""This machine's own address on the bridge."""
RUN = "/run/dsk"
"""Each host has its own here: sockets of agents and Ray's files."""
HOSTS_MAX = 24
LAUNCH = Path(__file__).with_name("launch.py")
POLL_S = 0.05
KILL_TIMEOUT_S = 10.0
SHAPE_BURST, SHAPE_LATENCY = "512kb", "50ms"
"""What a shaped cable lets through at once, and how long a packet waits before it is dropped."""


RAY_PORT = 6380
SMALL_JVMS = (
    "SPARK_DAEMON_JAVA_OPTS=-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "SPARK_DAEMON_MEMORY=256m",
)
"""Many JVMs share this machine: they shall start soon and stay small."""


class Plan(Struct, frozen=True):
    """What `up` was told, for the other commands."""

    hosts: int
    directory: str


class Host:
    """One of the hosts: an anchor process keeps its namespaces."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.name = f"dsk-{number}"
        self.address = f"{NETWORK}.{number}"
        self.state = directory / self.name
        self._anchor = directory / f"{self.name}.anchor"

    @property
    def cable(self) -> str:
        return f"dskv{self.number}"

    def make(self) -> None:
        """The namespaces, and a cable to the bridge."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        furnish = f"hostname {self.name} && mount -t tmpfs -o mode=700 {self.name} {RUN}"
        session = sessions.start(
            [
                *("unshare", "--net", "--mount", "--uts", "--propagation", "private"),
                *("sh", "-c", f"{furnish} && touch {RUN}/ready && exec sleep infinity"),
            ],
            env=os.environ,
            log=self.state / "anchor.log",
        )
        self._anchor.write_bytes(msgspec.json.encode(session))
        if not sessions.wait(lambda: Path(f"/proc/{session.pid}/root{RUN}/ready").exists(), 5.0):
            raise LaunchFailed(f"{self.name}: {sessions.tail(self.state / 'anchor.log')}")
        inside = f"{self.cable}i"
        _ip("link", "add", self.cable, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", str(session.pid), "name", "eth0")
        _ip("link", "set", self.cable, "master", BRIDGE, "up")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def command(self, *command: str) -> list[str]:
        """A command that runs on this host."""
        enter = ("nsenter", "--target", str(self._session().pid), "--net", "--mount", "--uts")
        home = self.state.parent / "home"  # descriptors, as if by NFS
        here = ("env", f"--chdir={os.getcwd()}", f"TMPDIR={RUN}", f"{HOME_VARIABLE}={home}")
        return [*enter, *here, *SMALL_JVMS, *command]

    def run(self, *command: str) -> None:
        """Raises LaunchFailed, with what it said, if it fails."""
        done = subprocess.run(self.command(*command), check=False, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
            raise LaunchFailed(f"{self.name}: {command[0]}: {said[-1]}")

    def launch(self, *arguments: str) -> "subprocess.Popen[str]":
        """launch.py on this host."""
        options = ("--config", str(self.state.parent / "cluster.toml"), "--state", str(self.state))
        return subprocess.Popen(
            self.command(sys.executable, str(LAUNCH), *options, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, *arguments: str) -> None:
        """launch.py on this host, to its end. Raises LaunchFailed."""
        _finish(self, self.launch(*arguments))

    def cut(self) -> None:
        _ip("link", "set", self.cable, "down")

    def join(self) -> None:
        _ip("link", "set", self.cable, "up")

    def shape(self, rate: str) -> None:
        """The cable carries so much each way, in `tc`'s words, from now on."""
        bucket = ("root", "tbf", "rate", rate, "burst", SHAPE_BURST, "latency", SHAPE_LATENCY)
        _run("tc", "qdisc", "replace", "dev", self.cable, *bucket)
        self.run("tc", "qdisc", "replace", "dev", "eth0", *bucket)

    def processes(self) -> Iterator[int]:
        """All on this host but the anchor."""
        anchor = self._session().pid
        network = _network(str(anchor))
        if network == _network("self"):
            raise LaunchFailed(f"{self.name} has no network of its own: `hosts.py down` ends it")
        for entry in os.listdir("/proc"):
            if entry.isdecimal() and int(entry) != anchor:
                with suppress(OSError):  # it ended meanwhile
                    if _network(entry) == network:
                        yield int(entry)

    def kill(self) -> int:
        """SIGKILLs all of them at once, as a power cut would; how many there were."""
        killed: set[int] = set()
        end_s = time.monotonic() + KILL_TIMEOUT_S
        while found := set(self.processes()):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found
            if time.monotonic() > end_s:
                raise LaunchFailed(f"{self.name}: processes do not end: {sorted(found)}")
            time.sleep(POLL_S)
        self._forget()
        return len(killed)

    def end_some(self, pattern: str) -> int:
        """SIGKILLs those whose command line has `pattern`; how many there were."""
        ended = 0
        for pid in list(self.processes()):
            with suppress(OSError):  # it ended meanwhile
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if pattern in words:
                    os.kill(pid, signal.SIGKILL)
                    ended += 1
        return ended

    def _forget(self) -> None:
        """What is in memory goes too: Ray takes its address file for a sign that it runs."""
        for path in Path(f"/proc/{self._session().pid}/root{RUN}").iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def end(self) -> None:
        if self._anchor.exists():
            session = self._recorded()
            if sessions.is_alive(session):
                if _network(str(session.pid)) != _network("self"):  # else it was only begun
                    self.kill()
                sessions.stop(session)
            # It would go with its namespace, but only in a while.
            subprocess.run(["ip", "link", "del", self.cable], check=False, capture_output=True)
            self._anchor.unlink()

    def _session(self) -> Session:
        """The anchor. Raises BadRequest if it has ended: its number may be a stranger's now."""
        if not self._anchor.exists():
            raise BadRequest(f"host {self.number} is not there: see `hosts.py up --hosts`")
        session = self._recorded()
        if not sessions.is_alive(session):
            raise BadRequest(f"host {self.number} is gone: `hosts.py down`, then `up`")
        return session

    def _recorded(self) -> Session:
        return msgspec.json.decode(self._anchor.read_bytes(), type=Session)


class Hosts:
    def __init__(self, plan: Plan) -> None:
        self.directory = Path(plan.directory)
        self.all = [Host(number, self.directory) for number in range(1, plan.hosts + 1)]

    def up(self, config: str) -> None:
        """Raises LaunchFailed; `down` removes what is there by then."""
        refuse_others()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config.write_text(config)
        for left in (self.directory / "home", *(host.state for host in self.all)):
            shutil.rmtree(left, ignore_errors=True)  # of earlier hosts
        Path(RUN).mkdir(mode=0o700, exist_ok=True)
        _ip("link", "add", BRIDGE, "type", "bridge")
        self._bridge.touch()
        _ip("addr", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for host in self.all:
            host.make()
        head = self.all[0]
        head.finish("head")
        for host in self.all:  # One after the other: they share the machine's cores.
            self._give_token(head, host)
            host.finish("worker", "--host", host.address)
        head.finish("agents")

    @property
    def head(self) -> Host:
        return next(host for host in self.all if f'"{host.address}"' in self._config.read_text())

    def back(self, hosts: Sequence[Host]) -> None:
        """What runs on hosts, again; agents come back by themselves, where Ray knows of them."""
        for host in sorted(hosts, key=lambda host: host is not self.head):
            if host is self.head:
                host.finish("head")
            host.finish("worker", "--host", host.address)

    def rehead(self, head: Host) -> None:
        """Another host becomes the head, and all hosts move to its Ray, one after the other.

        If it is the head already, only what was interrupted is finished. Spark's workers stay
        as they are, since a stream may run on them.
        """
        old, config = self.head, self._config.read_text()
        if old is not head:
            port = int(re.findall(r"ray_port = (\d+)", config)[0])
            config = config.replace(f'"{old.address}"', f'"{head.address}"')
            self._config.write_text(config.replace(f"ray_port = {port}", f"ray_port = {port + 1}"))
        head.finish("head")
        head.finish("agents")  # those of the lost host: the margin is k again
        for host in [*(host for host in self.all if host is not head), head]:
            self._give_token(head, host)
            host.finish("worker", "--host", host.address, "--ray-only")
            head.finish("agents")

    @property
    def _config(self) -> Path:
        return self.directory / "cluster.toml"

    @property
    def _bridge(self) -> Path:
        """There if the bridge is ours."""
        return self.directory / "bridge"

    def _give_token(self, head: Host, host: Host) -> None:
        if host is not head:
            token = host.state / "ray.token"
            token.write_bytes((head.state / token.name).read_bytes())
            token.chmod(0o600)

    def down(self) -> None:
        for host in self.all:
            host.end()
        if self._bridge.exists():
            subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)
            self._bridge.unlink()
            with suppress(OSError):
                Path(RUN).rmdir()

    def pick(self, numbers: Sequence[int]) -> list[Host]:
        for number in numbers:
            if not 1 <= number <= len(self.all):
                raise BadRequest(f"host {number}: there are hosts 1 to {len(self.all)}")
        return [self.all[number - 1] for number in numbers]


def refuse_others() -> None:
    """Raises LaunchFailed if this machine has hosts: there is one bridge."""
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        raise LaunchFailed("there are hosts already: `hosts.py down` ends them")


def permitted() -> str:
    """Why this machine cannot have hosts of its own, or "" if it can."""
    if os.geteuid():
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            return f"`{tool}` is missing: install {package}"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"],
        check=False,
        capture_output=True,
        text=True,
    )
    return f"namespaces are not permitted: {done.stderr.strip()}" if done.returncode else ""


def configuration(
    agents: int, *, data_shards: int, parity_shards: int, memory: str, name: str, cache: str = "0"
) -> str:
    """A cluster.toml for so many agents, and a Spark worker on each host."""
    return (
        f'[head]\nhost = "{NETWORK}.1"\nray_port = {RAY_PORT}\n'
        '[spark]\nworkers = 1\ncores = 1\nmemory = "1g"\n'
        f'[diskless]\nname = "{name}"\nagents = {agents}\nmemory = "{memory}"\ncache = "{cache}"\n'
        f"data_shards = {data_shards}\nparity_shards = {parity_shards}\n"
    )


def _network(pid: str) -> int:
    """Which network a process sees. Raises OSError if it has ended."""
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LaunchFailed(f"{' '.join(command)}: {done.stderr.strip()}")


def _finish(host: Host, process: "subprocess.Popen[str]") -> None:
    said = ""
    with process:
        assert process.stdout is not None
        for said in process.stdout:
            print(f"{host.name}: {said}", end="", flush=True)
    if process.returncode:
        raise LaunchFailed(f"{host.name}: {said.strip() or 'launch.py failed'}")


# The command line.

_PLAN = Path("/run/dsk-plan.json")
"""There is one set of hosts on a machine: they share a bridge."""


def _load() -> Hosts:
    if not _PLAN.exists():
        raise BadRequest("there are no hosts: `hosts.py up --hosts 5` makes some")
    return Hosts(msgspec.json.decode(_PLAN.read_bytes(), type=Plan))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Hosts on this machine, each with its own address, Ray node, Spark worker and agent."""


@main.command()
@click.option("--hosts", type=click.IntRange(2, HOSTS_MAX), default=5, show_default=True)
@click.option("-m", "--data-shards", default=2, show_default=True)
@click.option("-k", "--parity-shards", default=2, show_default=True)
@click.option("--memory", default="128MiB", show_default=True, help="Of each agent.")
@click.option("--cache", default="0", show_default=True, help="Of it, for copies: a size or 10%.")
@click.option("--name", default="hosts", show_default=True, help="Of the diskless cluster.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), default=Path("/var/tmp/dsk"),
              show_default=True, help="State and logs of all hosts.")  # fmt: skip
def up(
    hosts: int,
    data_shards: int,
    parity_shards: int,
    memory: str,
    cache: str,
    name: str,
    directory: Path,
) -> None:
    """Make the hosts, and start Ray, Spark and diskless on them."""
    if complaint := permitted():
        raise LaunchFailed(complaint)
    refuse_others()  # Before the plan: what fails from there on ends the hosts that it names.
    plan = Plan(hosts=hosts, directory=str(directory.resolve()))
    try:
        with _PLAN.open("xb") as file:
            file.write(msgspec.json.encode(plan))
    except FileExistsError:
        raise LaunchFailed("there are hosts already: `hosts.py down` ends them") from None
    config = configuration(
        hosts,
        data_shards=data_shards,
        parity_shards=parity_shards,
        memory=memory,
        cache=cache,
        name=name,
    )
    try:
        Hosts(plan).up(config)
    except BaseException:
        Hosts(plan).down()
        _PLAN.unlink()
        raise


@main.command()
def down() -> None:
    """End everything on all hosts, and the hosts."""
    _load().down()
    _PLAN.unlink()


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("number", type=int)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(number: int, command: tuple[str, ...]) -> None:
    """Run COMMAND on a host."""
    (host,) = _load().pick([number])
    sys.exit(subprocess.run(host.command(*command), check=False).returncode)


@main.command()
@click.argument("numbers", nargs=-1, required=True, type=int)
def cut(numbers: tuple[int, ...]) -> None:
    """Pull the cables of hosts."""
    for host in _load().pick(numbers):
        host.cut()


@main.command()
@click.argument("numbers", nargs=-1, required=True, type=int)
def join(numbers: tuple[int, ...]) -> None:
    """Put the cables of hosts back."""
    for host in _load().pick(numbers):
        host.join()


@main.command()
@click.argument("rate")
def shape(rate: str) -> None:
    """Have all cables carry RATE each way, as `tc` writes it: 1gbit, 100mbit."""
    for host in _load().all:
        host.shape(rate)


@main.command()
@click.argument("number", type=int)
@click.argument("pattern")
def end(number: int, pattern: str) -> None:
    """SIGKILL the processes on a host whose command lines have PATTERN."""
    (host,) = _load().pick([number])
    began_s = time.time()
    ended = host.end_some(pattern)
    print(f"{host.name}: {ended} processes ended at {began_s:.3f}")
    if not ended:
        raise BadRequest(f"nothing on {host.name} has {pattern!r} in its command line")


@main.command()
@click.argument("numbers", nargs=-1, required=True, type=int)
def kill(numbers: tuple[int, ...]) -> None:
    """SIGKILL every process on hosts: agent, executors, raylet, all at once."""
    for host in _load().pick(numbers):
        began_s = time.time()
        print(f"{host.name}: {host.kill()} processes killed at {began_s:.3f}")


@main.command()
@click.argument("numbers", nargs=-1, required=True, type=int)
def back(numbers: tuple[int, ...]) -> None:
    """Start again what ran on hosts that were killed."""
    hosts = _load()
    hosts.back(hosts.pick(numbers))


@main.command()
@click.argument("number", type=int)
def rehead(number: int) -> None:
    """Make another host the head, and move all hosts to its Ray, one by one."""
    hosts = _load()
    (head,) = hosts.pick([number])
    hosts.rehead(head)


if __name__ == "__main__":
    try:
        main()
    except DisklessError as error:
        print(f"hosts: {error.reason}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
