"""The lake's files in a bucket: what is written is found, never overwritten, and each failure is
one line that names what to change.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from headrace.lake.errors import LakeError, LakeUnreachableError
from headrace.lake.files import PART_BYTES, LakeFiles
from headrace.testing.s3 import S3Server


@pytest.fixture
def environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials as a service has them."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def fails(files: LakeFiles, cause: str, remedy: str) -> None:
    """Each use of the files fails with one line."""
    location = files.location("a/b.txt")
    for use in (
        lambda: files.put(location, b"x"),
        lambda: files.get(location),
        lambda: list(files.walk(files.location("a"))),
        files.folders,
    ):
        with pytest.raises(LakeUnreachableError) as raised:
            use()
        line = str(raised.value)
        assert cause in line
        assert remedy in line
        assert files.root in line
        assert "\n" not in line


@pytest.mark.usefixtures("environment")
async def test_files_in_a_bucket_are_found_and_never_overwritten(s3: S3Server) -> None:
    def use() -> None:
        files = LakeFiles(s3.url("lake"))
        first, other = files.location("public/t-1/a.txt"), files.location("public/u-1/b.txt")
        large = os.urandom(PART_BYTES + 1)
        files.put(first, b"first")
        files.put(other, large)
        with pytest.raises(LakeUnreachableError, match="can't be written"):
            files.put(first, b"second")
        assert files.get(first) == b"first"
        assert files.get(other) == large
        assert [files.size(first), files.size(other)] == [5, len(large)]
        found = {name: size for name, size, _ in files.walk(files.root + "/public")}
        assert found == {first: 5, other: len(large)}
        assert files.folders() == [files.location("public")]
        assert sorted(files.folders(files.location("public"))) == [
            files.location("public/t-1"),
            files.location("public/u-1"),
        ]
        files.delete([first, first, files.location("public/none")])
        with pytest.raises(LakeError, match=r"a.txt is missing") as raised:
            files.get(first)
        assert not raised.value.retry

    await asyncio.to_thread(use)


async def test_a_bucket_that_can_not_be_used_is_named_with_its_setting(
    s3: S3Server, environment: pytest.MonkeyPatch
) -> None:
    def use(url: str) -> LakeFiles:
        return LakeFiles(url, timeout_s=5.0)

    absent = use("s3://absent/lake")
    await asyncio.to_thread(fails, absent, "NoSuchBucket", "Create the bucket")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = use(s3.url("lake"))
    await asyncio.to_thread(fails, refused, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY")
    await s3.kill()
    await asyncio.to_thread(fails, refused, "error sending request", "HEADRACE_LAKE_URL")
