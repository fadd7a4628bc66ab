"""Every case of jvm/*.scala, one test each: what Hadoop and Spark expect of a file system."""

import re
from typing import Any

import pytest

from diskless.checksum import file_checksum
from diskless.launch.local import LocalCluster
from tests.spark.conftest import CASES
from tests.support import content


def find_cases() -> list[tuple[str, str]]:
    return [
        (path.stem, name)
        for path in sorted(CASES.glob("*Suite.scala"))
        for name in re.findall(r'^  test\("(.+)"\)', path.read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize(("suite", "name"), find_cases())
def test_case(spark: Any, jvm: Any, cluster: LocalCluster, suite: str, name: str) -> None:
    directory = f"{cluster.uri}contract/{suite}/{re.sub('[^a-z0-9]+', '-', name.lower())}"
    conf = spark._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path(directory)
    path.getFileSystem(conf).mkdirs(path)
    jvm.io.diskless.spark.Suites.run(suite, name, directory, conf)


def test_a_case_that_fails_is_seen(spark: Any, jvm: Any, cluster: LocalCluster) -> None:
    """The bridge itself: an exception in the JVM is one here."""
    conf = spark._jsc.hadoopConfiguration()
    with pytest.raises(Exception, match="no such case"):
        jvm.io.diskless.spark.Suites.run("ReadSuite", "no such case", cluster.uri, conf)


def test_checksums_are_those_of_the_agents(jvm: Any) -> None:
    checksum = jvm.io.diskless.spark.Suites.checksum
    sizes = [*range(300), 511, 512, 513, 1023, 1024, 1025, 2000, 4096, 100_000, 1 << 20]
    for size in sizes:
        data = content(size)
        wanted = f"{file_checksum(data):016x}"
        for piece in (max(size, 1), 1, 63, 64, 65, 255, 256, 257, 1000):
            if size / piece < 2000:
                assert checksum(bytearray(data), piece) == wanted, (size, piece)
