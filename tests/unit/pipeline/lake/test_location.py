"""Where tables are: which paths and URLs are accepted, and what the libraries get of them."""

import pickle
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from safekeeper.base.errors import ArchiveRefused, ArchiveUnavailable, ConfigurationError, StorageFailed, WalproxyError
from walproxy.pipeline.lake.errors import lake_errors
from walproxy.pipeline.lake.location import LakeLocation

REMOTE = LakeLocation.parse(
    "s3://bucket/lake", {"region": "us-east-1", "access_key_id": "AK", "secret_access_key": "very secret"}
)


@pytest.mark.parametrize(
    ("text", "url", "folder"),
    [
        ("/lake/wal/", "/lake/wal", Path("/lake/wal")),
        ("file:///two%20words/wal", "/two words/wal", Path("/two words/wal")),
        ("s3://bucket", "s3://bucket", None),
        ("s3://bucket/lake//wal/", "s3://bucket/lake/wal", None),
        ("GS://bucket/lake", "gs://bucket/lake", None),
        ("az://container/lake", "az://container/lake", None),
    ],
)
def test_a_path_or_a_url_is_a_location(
    text: str, url: str, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    location = LakeLocation.parse(text)
    assert (location.url, location.folder, str(location)) == (url, folder, url)
    below = location.below("records")
    assert (below.url, below.name) == (f"{url}/records", "records")
    assert pickle.loads(pickle.dumps(below)) == below


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("", {}, "has no name"),
        ("ftp://host/lake", {}, "ftp:// cannot store tables: name a folder, or s3://BUCKET/PREFIX"),
        ("safekeeper://sk1:5462", {}, "safekeeper:// cannot store tables"),
        ("s3:///lake", {}, "has no bucket"),
        ("s3://me:secret@bucket/lake", {}, "has more than a host and a path"),
        ("s3://bucket/lake?region=x", {}, "has more than a host and a path"),
        ("s3://bucket/50%25", {}, "has a '%'"),
        ("s3://bucket/lake", {"nonsense": "1"}, "the store s3://bucket/lake has no option 'nonsense'"),
        ("s3://bucket/lake", {"root_certificate": "/ca.pem"}, "the option root_certificate is not supported"),
        ("/lake", {"region": "x"}, "have no options: remove region"),
        ("file://host/lake", {}, "is needed here, not file://host/lake"),
    ],
)
def test_what_is_not_a_location_is_refused_in_one_line(text: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        LakeLocation.parse(text, options)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_catalog_is_of_an_object_store_and_its_password_is_secret() -> None:
    catalog = {"uri": "postgresql+psycopg://me:very%20secret@db1/lake", "token": "a token", "namespace": "main"}
    location = LakeLocation.parse("s3://bucket/lake", {"region": "us-east-1"}, catalog)
    assert dict(location.below("records").catalog) == catalog
    assert pickle.loads(pickle.dumps(location)) == location
    assert location.secrets == ["a token", "very secret"]
    with pytest.raises(ConfigurationError, match="/lake have their catalog beside them: remove iceberg_catalog"):
        LakeLocation.parse("/lake", {}, catalog)


def test_delta_gets_the_options_of_the_store_and_http_only_for_an_endpoint_without_tls() -> None:
    assert LakeLocation.parse("/lake").delta_options() is None
    secure = REMOTE.delta_options()
    assert secure is not None
    assert (secure["region"], secure["allow_http"], secure["max_retries"]) == ("us-east-1", "false", "3")
    plain = LakeLocation.parse("s3://bucket/lake", {"endpoint": "http://127.0.0.1:9000"}).delta_options()
    assert plain is not None
    assert plain["allow_http"] == "true"


ARROWS = (
    "Kernel error -> Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing list request\n     \x1b[31m↳\x1b[0m "
    "Error performing GET http://127.0.0.1/bucket?list-type=2 in 5ms - Server returned non-2xx status code\n"
    "      \x1b[31m↳\x1b[0m {}"
)


@pytest.mark.parametrize(
    ("error", "location", "kind", "line"),
    [
        (OSError(ARROWS.format("503 Slow Down: <Code>SlowDown</Code>")), REMOTE, ArchiveUnavailable, "SlowDown"),
        (OSError(ARROWS.format("403 Forbidden: <Code>ExpiredToken</Code>")), REMOTE, ArchiveRefused, "have expired"),
        (OSError(ARROWS.format("404: <Code>NoSuchBucket</Code>")), REMOTE, ArchiveRefused, "make the bucket"),
        (OSError(ARROWS.format("404 Not Found: <Code>NoSuchKey</Code>")), REMOTE, StorageFailed, "NoSuchKey$"),
        (DeltaError(ARROWS.format("very secret: oops")), REMOTE, ArchiveUnavailable, r"\*\*\*: oops"),
        (DeltaError("Invalid table version: 7\nand more"), REMOTE, StorageFailed, "Invalid table version: 7$"),
        (OSError("Generic LocalFileSystem error"), LakeLocation("/lake"), StorageFailed, "LocalFileSystem error$"),
    ],
)
def test_what_delta_raises_is_one_line_and_says_whether_it_may_pass(
    error: Exception, location: LakeLocation, kind: type[WalproxyError], line: str
) -> None:
    with pytest.raises(kind, match=f"^could not read it: .*{line}") as caught, lake_errors("read it", location):
        raise error
    assert "\n" not in str(caught.value)
    assert "very secret" not in str(caught.value)


def test_errors_of_this_program_stay_as_they_are() -> None:
    with pytest.raises(ConfigurationError, match=r"^as it is$"), lake_errors("read it", REMOTE):
        raise ConfigurationError("as it is")
