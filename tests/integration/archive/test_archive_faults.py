"""The archive over S3 on its bad days: a relay in front of the store errs, waits, breaks off, forgets and lies."""

import logging
import re
import time
from collections.abc import Iterator

import pytest
from aiohttp import web

from safekeeper.archive.objects import partial_file
from safekeeper.base.errors import ArchiveConflict, ArchiveCorrupt, ArchiveError, ArchiveRefused, ArchiveUnavailable
from tests.integration.archive.archive_fixtures import MIB, Archive, confirmed, credentials, segment, wal
from tests.integration.archive.faulty_relay import (
    Fault,
    FaultyRelay,
    Forward,
    Request,
    answer,
    delay,
    drop,
    drop_the_answer,
    first,
    garble,
    hang,
    ignore_conditions,
    passing,
    tear,
)
from tests.integration.archive.object_stores import ACCESS_KEY, SECRET_KEY, MotoServer, Place, RcloneServer, Server

OBJECT = r"/\w{24}(\?|$)"  # the segment itself, in the path of a request
RECEIPT = r"\.receipt(\?|$)"
PATIENCE_S = 1.0  # of a request in tests of stores that do not answer
BOUND_S = 15.0  # of a whole upload then


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    with credentials(), MotoServer() as made:
        yield made


@pytest.fixture
def relay(moto: Server) -> Iterator[FaultyRelay]:
    with FaultyRelay(moto.endpoint) as made:
        yield made


@pytest.fixture
def archive(moto: Server, relay: FaultyRelay, request: pytest.FixtureRequest) -> Archive:
    """An archive that is ours already, reached through the relay."""
    prefix = re.sub(r"\W+", "-", request.node.name)
    made = Archive(moto, prefix, moto.place(prefix, relay.endpoint))
    made.uploader().claim()
    return made


def assert_it_holds(archive: Archive, content: bytes) -> None:
    """Segment 0 is there with these bytes, and nothing contradicts it."""
    assert confirmed(archive) == {segment(0)}
    found = archive.reader().find(1, 0)
    assert found is not None and archive.reader().fetch_bytes(found) == content


def assert_one_clear_line(error: ArchiveError, *parts: str) -> None:
    text = str(error)
    assert "\n" not in text and len(text) < 500
    assert SECRET_KEY not in text and ACCESS_KEY not in text and "AWS4" not in text
    for part in parts:
        assert part in text, text


async def locked(request: Request, forward: Forward) -> web.Response:
    """A bucket with Object Lock: a put without a checksum of its content is refused, as by S3."""
    names = {name.lower() for name, _ in request.headers}
    if request.body and not any(name.startswith("x-amz-checksum-") or name == "content-md5" for name in names):
        return await answer(
            400,
            "InvalidRequest",
            "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock "
            "parameters",
        )(request, forward)
    return await forward(request)


@pytest.mark.parametrize("options", [{}, {"checksum_algorithm": "sha256"}], ids=["default", "chosen"])
def test_a_bucket_with_object_lock_gets_checksums(
    moto: Server, relay: FaultyRelay, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    relay.when("PUT", "", locked)
    place = moto.place(f"locked-{len(options)}", relay.endpoint)
    archive = Archive(moto, f"locked-{len(options)}", Place(place.url, {**place.options, **options}, place.environment))
    uploader = archive.uploader()
    uploader.claim()
    uploader.upload(segment(0), wal(0))
    assert_it_holds(archive, wal(0))
    if options:
        assert "requires checksums" not in caplog.text
    else:
        assert caplog.text.count("requires checksums (Object Lock): sending SHA-256 with each object") == 1
    # In parts: the first attempt of a process may be refused.
    store = archive.store()
    pieces = [bytes([number]) * (6 * MIB) for number in range(3)]
    if not options:
        with pytest.raises(ArchiveUnavailable, match="Object Lock"):
            store.put("parts", iter(pieces), absent=False)
    assert store.put("parts", iter(pieces), absent=False)
    assert store.get("parts") == b"".join(pieces)


@pytest.mark.parametrize(
    "fault",
    [
        answer(500, "InternalError"),
        answer(502, "BadGateway"),
        answer(503, "SlowDown", "Please reduce your request rate."),
        answer(429, "TooManyRequests"),
        drop,
        delay(0.2),
    ],
    ids=["500", "502", "throttled", "429", "dropped", "late"],
)
def test_what_passes_is_not_noticed(archive: Archive, relay: FaultyRelay, fault: Fault) -> None:
    for method in ("GET", "PUT"):
        relay.when(method, "", fault, times=2)
    assert archive.uploader().upload(segment(0), wal(0))
    assert_it_holds(archive, wal(0))


@pytest.mark.parametrize(
    "fault",
    [answer(500, "InternalError"), answer(503, "SlowDown"), drop, hang],
    ids=["500", "throttled", "dropped", "no answer"],
)
@pytest.mark.parametrize("path", ["", OBJECT, RECEIPT], ids=["everything", "the segment", "the receipt"])
def test_a_store_that_fails_is_unavailable_in_bounded_time_and_later_it_goes_on(
    archive: Archive, relay: FaultyRelay, fault: Fault, path: str
) -> None:
    # Only a request that hangs needs a short time: a healthy store, with which this uploader goes on, may be slow.
    uploader = archive.uploader(timeout_s=PATIENCE_S) if fault is hang else archive.uploader()
    relay.when("", path, fault)
    began = time.monotonic()
    with pytest.raises(ArchiveUnavailable) as unavailable:
        uploader.upload(segment(0), wal(0))
    assert time.monotonic() - began < BOUND_S
    assert_one_clear_line(unavailable.value, archive.place.url)
    relay.clear()
    assert confirmed(archive) == set()
    assert (archive.uploader() if fault is hang else uploader).upload(segment(0), wal(0))
    assert_it_holds(archive, wal(0))


def test_a_store_that_is_gone_is_unavailable_in_bounded_time(archive: Archive, relay: FaultyRelay) -> None:
    uploader = archive.uploader(timeout_s=PATIENCE_S)
    relay.close()
    began = time.monotonic()
    for ask in (uploader.claim, lambda: uploader.upload(segment(0), wal(0))):
        with pytest.raises(ArchiveUnavailable) as unavailable:
            ask()
        assert_one_clear_line(unavailable.value, archive.place.url)
    assert time.monotonic() - began < BOUND_S


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ExpiredToken"),
        (403, "ExpiredToken"),
        (400, "InvalidToken"),
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "RequestTimeTooSkewed"),
        (404, "NoSuchBucket"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_store_without_access_is_refused_with_the_reason(
    archive: Archive, relay: FaultyRelay, status: int, code: str, method: str
) -> None:
    uploader = archive.uploader()
    before = relay.requests(method)
    relay.when(method, "", answer(status, code, "You are not welcome."))
    with pytest.raises(ArchiveRefused) as refused:
        uploader.upload(segment(0), wal(0))
    assert relay.requests(method) == before + 1, "what does not pass by itself is not tried again"
    assert_one_clear_line(refused.value, archive.place.url, code)
    relay.clear()
    assert uploader.upload(segment(0), wal(0))
    assert_it_holds(archive, wal(0))


@pytest.mark.parametrize("path", [OBJECT, RECEIPT], ids=["the segment", "the receipt"])
def test_an_answer_that_is_lost_does_no_harm(archive: Archive, relay: FaultyRelay, path: str) -> None:
    relay.when("PUT", path, drop_the_answer, times=1)
    archive.uploader().upload(segment(0), wal(0))
    assert relay.requests("PUT", path) >= 1
    assert_it_holds(archive, wal(0))


@pytest.mark.parametrize("path", [OBJECT, RECEIPT], ids=["the segment", "the receipt"])
@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
def test_a_condition_that_could_not_be_checked_is_no_object(
    archive: Archive, relay: FaultyRelay, path: str, times: int | None
) -> None:
    """S3 answers 409 when a delete came in between: nothing has been written, and the client is to try again."""
    uploader = archive.uploader()
    relay.when("PUT", path, answer(409, "ConditionalRequestConflict"), times=times)
    try:
        uploader.upload(segment(0), wal(0))
    except ArchiveUnavailable as error:
        assert_one_clear_line(error)
        assert confirmed(archive) == set()
    else:
        assert times == 1
        assert_it_holds(archive, wal(0))
    relay.clear()
    uploader.upload(segment(0), wal(0))
    assert_it_holds(archive, wal(0))


def test_an_upload_that_tears_is_replaced(
    archive: Archive, relay: FaultyRelay, caplog: pytest.LogCaptureFixture
) -> None:
    relay.when("PUT", OBJECT, tear, times=1)
    with caplog.at_level(logging.WARNING):
        try:
            archive.uploader().upload(segment(0), wal(0))
        except ArchiveError as error:
            assert_one_clear_line(error)
            assert archive.read(segment(0).key(False)) == wal(0)[: MIB // 2]
            assert confirmed(archive) == set()
            archive.uploader().upload(segment(0), wal(0))
    assert any(segment(0).key(False) in record.getMessage() for record in caplog.records)
    assert_it_holds(archive, wal(0))


def test_what_is_read_back_differently_gets_no_receipt(archive: Archive, relay: FaultyRelay) -> None:
    relay.when("GET", OBJECT, garble)
    with pytest.raises(ArchiveCorrupt) as corrupt:
        archive.uploader().upload(segment(0), wal(0))
    assert_one_clear_line(corrupt.value, segment(0).key(False))
    relay.clear()
    assert confirmed(archive) == set()
    archive.uploader().upload(segment(0), wal(0))
    assert_it_holds(archive, wal(0))


def _all_of_it(archive: Archive) -> None:
    uploader = archive.uploader(compress=True)
    uploader.claim()
    uploader.upload(partial_file(1, 0, 5000, MIB), wal(0)[:5000])
    uploader.upload(segment(0), wal(0))


# What the store has before a request it has after the one before, so one of the two is enough by day.
@pytest.mark.parametrize(
    "fault",
    [pytest.param(answer(403, "AccessDenied"), marks=pytest.mark.nightly), drop_the_answer],
    ids=["before", "after"],
)
def test_an_archiver_that_ends_at_any_request_leaves_nothing_that_another_cannot_finish(
    moto: Server, relay: FaultyRelay, fault: Fault, request: pytest.FixtureRequest
) -> None:
    prefix = re.sub(r"\W+", "-", request.node.name)
    whole = Archive(moto, f"{prefix}-whole", moto.place(f"{prefix}-whole", relay.endpoint))
    _all_of_it(whole)
    requests = relay.requests()
    ended_early = 0
    for passed in range(requests):
        name = f"{prefix}-{passed}"
        archive = Archive(moto, name, moto.place(name, relay.endpoint))
        # The first one meets the fault and, with everything refused after it, gets no further.
        relay.when("", "", fault, skip=passed, times=1)
        relay.when("", "", answer(403, "AccessDenied"), skip=passed)
        try:
            _all_of_it(archive)
        except ArchiveError as error:
            assert_one_clear_line(error)
            ended_early += 1
        relay.clear()

        listing = archive.uploader().listing()
        assert (listing.conflicts, listing.lost) == ([], []), f"after {passed} requests"
        for archived in listing.objects:
            assert archive.reader().fetch_bytes(archived) == wal(0)[: archived.file.end_lsn]
        _all_of_it(archive)
        assert_it_holds(archive, wal(0))
        assert len(archive.keys()) == 3, archive.keys()
    assert ended_early > requests // 2, "only what is deleted may fail"


def _another_comes_in_between(archive: Archive, relay: FaultyRelay, path: str, then: Fault = passing) -> None:
    """Let another uploader, past the relay, put other bytes there just before our next put."""
    direct = Archive(archive.server, archive.prefix, archive.server.place(archive.prefix))
    relay.when("PUT", path, first(lambda: direct.uploader(safekeeper_id=2).upload(segment(0), wal(1)), then), times=1)


def test_another_that_comes_in_between_is_not_overwritten(archive: Archive, relay: FaultyRelay) -> None:
    _another_comes_in_between(archive, relay, OBJECT)
    with pytest.raises(ArchiveConflict) as conflict:
        archive.uploader().upload(segment(0), wal(0))
    assert_one_clear_line(conflict.value, segment(0).name)
    assert_it_holds(archive, wal(1))


@pytest.mark.parametrize("path", [OBJECT, RECEIPT], ids=["before the segment", "before the receipt"])
def test_another_that_comes_in_between_is_noticed_without_conditions(
    archive: Archive, relay: FaultyRelay, path: str
) -> None:
    """A store without conditions may lose one of the two, and then no reader takes what is left for good WAL."""

    _another_comes_in_between(archive, relay, path, then=ignore_conditions)
    relay.when("PUT", "", ignore_conditions)
    with pytest.raises(ArchiveConflict):
        archive.uploader().upload(segment(0), wal(0))
    with pytest.raises((ArchiveConflict, ArchiveCorrupt)):
        found = archive.reader().find(1, 0)
        assert found is not None
        archive.reader().fetch_bytes(found)


def test_without_credentials_an_error_comes_in_bounded_time(
    archive: Archive, relay: FaultyRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the environment, and the machine's own metadata have no credentials either."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    relay.when("", "/latest/", answer(404, "NotFound"))
    place = archive.place
    lonely = Archive(
        archive.server, archive.prefix, type(place)(place.url, {**place.options, "metadata_endpoint": relay.endpoint})
    )
    began = time.monotonic()
    with pytest.raises(ArchiveError) as error:
        lonely.uploader(timeout_s=PATIENCE_S).claim()
    assert time.monotonic() - began < BOUND_S
    assert_one_clear_line(error.value, place.url)


def test_wrong_credentials_are_refused_by_a_server_that_checks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY[::-1])
    with RcloneServer() as server:
        archive = Archive(server, "cluster", server.place("cluster"))
        with pytest.raises(ArchiveRefused) as refused:
            archive.uploader().claim()
        assert_one_clear_line(refused.value, archive.place.url)
        assert SECRET_KEY[::-1] not in str(refused.value)
        assert archive.keys() == []
