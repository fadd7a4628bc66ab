"""The jar that teaches Spark `diskless://`: compiled here, once, by Spark's own compiler.

The Scala compiler is among the jars of pip's pyspark, so the sources in `jvm/` become a jar
with nothing but a Java runtime, and always fit the Spark that will load them. The jar is kept
in the user's cache under a name made from all that went into it; a run that finds it there need
not look inside. It appears by a rename, so two processes may build it at the same time.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path

from diskless.errors import SparkUnusable

JAVA_MIN = 17
"""The oldest that Spark 4 runs on, and the first with Unix-domain channels we can rely on."""
SPARK_MIN = (4, 1)
COMPILE_TIMEOUT_S = 600
VERSION_TIMEOUT_S = 60
ERROR_LINES_MAX = 20
BRIEF_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a JVM that lives for minutes: what it would compile well hardly runs. To start Spark and run
one query takes 9 instead of 17 seconds of CPU."""

NAME = "diskless-spark"
SOURCES = Path(__file__).parent / "jvm"
_CORE = re.compile(r"spark-core_[\d.]+-(.+)\.jar")


def jar(report: Callable[[str], None] | None = None) -> Path:
    """The path of the jar, which is compiled first if need be.

    `report` gets a line when that takes a while; by default it goes to stderr. Raises
    SparkUnusable, in a line that says what to install.
    """
    return build(NAME, sorted(SOURCES.glob("*.scala")), report=report or _to_stderr)


def planned() -> tuple[str, Path]:
    """The version of pyspark, and where the jar for it is, or will be. Raises SparkUnusable."""
    version, jars = _find_spark()
    return version, _target(NAME, version, jars, sorted(SOURCES.glob("*.scala")))


def version_of_home() -> str:
    """Of the Spark in $SPARK_HOME; "" if that is not set, or does not tell."""
    home = os.environ.get("SPARK_HOME")
    names = Path(home, "jars").glob("spark-core_*.jar") if home else ()
    found = [match[1] for path in names if (match := _CORE.fullmatch(path.name))]
    return found[0] if len(found) == 1 else ""


def build(
    name: str,
    sources: Sequence[Path],
    *,
    classpath: Sequence[Path] = (),
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Compiles sources against Spark and `classpath` into a jar in the cache."""
    version, jars = _find_spark()
    target = _target(name, version, jars, [*classpath, *sources])
    if target.exists():
        return target
    java = find_java()
    report(f"diskless: compiling {name} for Spark {version}, once …")
    began = time.monotonic()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as scratch:
        classes = Path(scratch) / "classes"
        classes.mkdir()
        _compile(java, jars, sources, classes, classpath)
        packed = Path(scratch) / target.name
        _pack(classes, packed)
        os.replace(packed, target)
    report(f"diskless: compiled in {time.monotonic() - began:.0f} s: {target}")
    return target


def cache_dir() -> Path:
    """Where this user's jars are; it may not exist yet."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "diskless"


def find_java() -> str:
    """The java that Spark would use. Raises SparkUnusable if it is too old or there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = (
        f"install Java {JAVA_MIN} or newer (Debian, Ubuntu: "
        f"apt install openjdk-{JAVA_MIN}-jre-headless) or point JAVA_HOME at one"
    )
    if java is None:
        raise SparkUnusable(f"Spark needs Java and there is none here: {advice}")
    try:
        shown = subprocess.run(
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnusable(f"{java} does not run ({error}): {advice}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    if shown.returncode or found is None:
        raise SparkUnusable(f"{java} does not tell its version: {advice}")
    if int(found[1]) < JAVA_MIN:
        raise SparkUnusable(f"{java} is Java {found[1]}: {advice}")
    return java


def _find_spark() -> tuple[str, Path]:
    """The version of pyspark and the directory of its jars."""
    advice = "pip install 'diskless[spark]'"
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise SparkUnusable(f"pyspark is not installed: {advice}") from None
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < SPARK_MIN:
        wanted = ".".join(map(str, SPARK_MIN))
        raise SparkUnusable(f"pyspark {version} is older than {wanted}: {advice}")
    spec = util.find_spec("pyspark")
    home = os.environ.get("SPARK_HOME")
    places = [Path(home)] if home else []
    places += [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if any((place / "jars").glob("scala-compiler-*.jar")):
            return version, place / "jars"
    raise SparkUnusable(f"pyspark {version} has no jars (is it pyspark-client?): {advice}")


def _target(name: str, version: str, jars: Path, inputs: Sequence[Path]) -> Path:
    return cache_dir() / f"{name}-{version}-{_digest(version, jars, inputs)}.jar"


def _digest(version: str, jars: Path, inputs: Sequence[Path]) -> str:
    against = ",".join(sorted(path.name for path in jars.glob("*.jar")))  # of SPARK_HOME, if set
    digest = hashlib.sha256(f"{version} {against}".encode())
    for path in inputs:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(
    java: str, jars: Path, sources: Sequence[Path], classes: Path, classpath: Sequence[Path]
) -> None:
    everything = os.pathsep.join([str(jars / "*"), *map(str, classpath)])
    command = [
        *(java, "-Xss4m", *BRIEF_JVM),
        *("-cp", everything, "scala.tools.nsc.Main", "-usejavacp"),
        *("-deprecation", "-encoding", "utf-8", "-d", str(classes)),
        *map(str, sources),
    ]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnusable(f"the Scala compiler did not finish: {error}") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()[:ERROR_LINES_MAX]
        raise SparkUnusable("the Scala compiler refused the sources:\n" + "\n".join(lines))


def _pack(classes: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n\n")
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes).as_posix())


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
