"""How the jar comes about, and what it says when it cannot."""

import os
import stat
import subprocess
import sys
import threading
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from diskless.client.descriptor import descriptor_path
from diskless.errors import NoCluster, SparkUnusable
from diskless.launch.local import LocalCluster
from diskless.spark.conf import TOKEN, configure, properties
from diskless.spark.jar import SOURCES, _digest, build, find_java, jar

HELLO = "package hello\nobject Hello { val answer = 42 }\n"


class Builder:
    """What `configure` needs of SparkSession.builder."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}

    def config(self, key: str, value: str) -> "Builder":
        self._options[key] = value
        return self


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "diskless"


def fake_java(directory: Path, version: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def test_two_builds_at_once_give_one_whole_jar(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "Hello.scala"
    source.write_text(HELLO)
    lines: list[str] = []
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(build("hello", [source], report=lines.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert "hello/Hello$.class" in zipfile.ZipFile(found[0]).namelist()
    assert [path.name for path in cache.iterdir()] == [found[0].name], "scratch is left"
    assert any("compiling hello" in line for line in lines)
    before = len(lines)
    assert build("hello", [source], report=lines.append) == found[0]
    assert len(lines) == before, "the second time there is nothing to do"
    source.write_text(HELLO.replace("42", "43"))
    assert build("hello", [source]) != found[0]


def test_another_spark_gets_another_jar(tmp_path: Path) -> None:
    """One compiled against pip's pyspark may not fit the jars of SPARK_HOME."""
    homes = [tmp_path / name for name in ("pip", "same", "other")]
    for home in homes:
        home.mkdir()
        (home / "scala-library-2.13.17.jar").touch()
        (home / f"hadoop-client-api-3.{5 if home.name == 'other' else 4}.0.jar").touch()
    source = tmp_path / "Hello.scala"
    source.write_text(HELLO)
    pip, same, other = (_digest("4.3.0", home, [source]) for home in homes)
    assert pip == same != other


def test_a_source_that_does_not_compile_is_shown(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "Bad.scala"
    source.write_text("object Bad { val answer: Int = true }\n")
    with pytest.raises(SparkUnusable, match=r"Bad\.scala:1(.|\n)*type mismatch"):
        build("bad", [source])
    assert not list(cache.iterdir())


def test_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SparkUnusable, match="openjdk-17-jre-headless"):
        find_java()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_old_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnusable, match="openjdk-17-jre-headless"):
        find_java()


@pytest.mark.parametrize("version", ["17.0.1", "21", "25-ea"])
def test_java_home_is_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(tmp_path / "bin" / "java")


def test_missing_and_old_pyspark_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    for version in (missing, lambda name: "3.5.1", lambda name: "4.0.2"):
        monkeypatch.setattr(metadata, "version", version)
        with pytest.raises(SparkUnusable, match=r"pip install 'diskless\[spark\]'"):
            jar()


@pytest.mark.parametrize(
    "line",
    [
        "spark.jars /a.jar,/b.jar",
        "spark.jars=/a.jar,/b.jar",
        "  spark.jars : /a.jar,\\\n    /b.jar  ",
        "spark.jars /c.jar\nspark.jars.packages org:x:1\n#spark.jars /d\nspark.jars\t/a.jar,/b.jar",
    ],
)
def test_configure_keeps_the_jars_of_spark_defaults(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"spark.master local\n{line}\n")
    builder = configure(Builder(), cluster.uri)
    assert builder._options["spark.jars"] == f"/a.jar,/b.jar,{jar()}"
    chosen = configure(Builder().config("spark.jars", "/own.jar"), cluster.uri)
    assert chosen._options["spark.jars"] == f"/own.jar,{jar()}", "a builder's own come first"


def test_configure_keeps_the_jars_that_are_there(cluster: LocalCluster) -> None:
    builder = Builder().config("spark.jars", "/a.jar,/b.jar")
    assert configure(builder, cluster.uri) is builder
    jars = builder._options["spark.jars"].split(",")
    assert jars == ["/a.jar", "/b.jar", str(jar())]
    configure(builder, cluster.uri)
    assert builder._options["spark.jars"].split(",") == jars


def test_an_unknown_cluster_is_refused() -> None:
    with pytest.raises(NoCluster, match="diskless up"):
        properties("nobody")


def test_the_cli_prints_jar_and_properties(cluster: LocalCluster, tmp_path: Path) -> None:
    assert run_cli("jar") == f"{jar()}\n"
    name = cluster.settings.name
    printed = dict(line.split(" ", 1) for line in run_cli("spark-conf", "-c", name).splitlines())
    assert printed == properties(name)
    target = tmp_path / "spark.conf"
    target.touch(mode=0o644)
    assert run_cli("spark-conf", "-c", name, "-o", str(target)) == ""
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert printed[TOKEN] in target.read_text()
    assert printed[TOKEN] not in run_cli("spark-conf", "-c", name, "--by-descriptor")


def test_sources_are_part_of_the_package() -> None:
    """hatch takes all files of the package; this is where they must be."""
    assert len(list(SOURCES.glob("*.scala"))) > 10


def test_a_descriptor_is_enough_for_the_jvm(spark: Any, jvm: Any, cluster: LocalCluster) -> None:
    conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    conf.unset("fs.diskless.gateways")
    conf.unset("fs.diskless.token")
    conf.set("fs.diskless.descriptor", str(descriptor_path(cluster.settings.name)))
    fs = jvm.org.apache.hadoop.fs.FileSystem.newInstance(jvm.java.net.URI("diskless:///"), conf)
    assert fs.exists(jvm.org.apache.hadoop.fs.Path("/"))
    fs.close()


def run_cli(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "diskless.cli", *arguments],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    return done.stdout
