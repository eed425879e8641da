"""The server that the tests of Cloud Storage trust: it is strict, on every verb."""

import http.client
import json

import pytest

from tests.effects.gcs_server import Bucket, GcsServer, Precondition, Refused
from tests.effects.gcs_server.bucket import PART_BYTES

ABSENT = Precondition(match=0)


@pytest.fixture
def bucket():
    return Bucket("bucket")


def refused(status, call, *args):
    with pytest.raises(Refused) as caught:
        call(*args)
    assert caught.value.status == status


def test_preconditions_hold_on_every_verb(bucket):
    made = bucket.insert("a", b"1", ABSENT, {})
    other = Precondition(match=made.generation + 1)
    refused(412, bucket.insert, "a", b"2", ABSENT, {})
    refused(412, bucket.insert, "a", b"2", other, {})
    refused(412, bucket.get, "a", other)
    refused(304, bucket.get, "a", Precondition(not_match=made.generation))
    refused(412, bucket.delete, "a", other)
    refused(412, bucket.begin, "a", ABSENT, {})
    assert bucket.insert("a", b"2", Precondition(match=made.generation), {}).generation > made.generation
    bucket.delete("a", Precondition())
    refused(404, bucket.delete, "a", Precondition())


def test_of_two_sessions_the_first_to_finish_wins(bucket):
    first, second = bucket.begin("a", ABSENT, {}), bucket.begin("a", ABSENT, {})
    assert bucket.append(second, 0, b"his", 3).finished is not None
    refused(412, bucket.append, first, 0, b"mine", 4)
    assert bucket.objects["a"].data == b"his"


def test_a_session_takes_whole_parts_once_and_in_order(bucket):
    session, part = bucket.begin("a", ABSENT, {}), b"x" * PART_BYTES
    assert len(bucket.append(session, 0, part + b"y", None).data) == PART_BYTES
    assert len(bucket.append(session, 0, part, None).data) == PART_BYTES
    refused(503, bucket.append, session, 2 * PART_BYTES, b"z", 2 * PART_BYTES + 1)
    assert bucket.append(session, None, b"", None).finished is None
    total = PART_BYTES + 2
    assert bucket.append(session, PART_BYTES, b"yz", total).finished is not None
    assert bucket.append(session, PART_BYTES, b"yz", total).finished is not None, "the answer got lost"
    assert bucket.objects["a"].data == part + b"yz"
    refused(410, bucket.append, "none", 0, b"", 0)


def test_sums_are_compared(bucket):
    refused(400, bucket.insert, "a", b"1", ABSENT, {"crc32c": "AAAAAA=="})
    refused(400, bucket.insert, "a", b"1", ABSENT, {"md5Hash": "AAAA"})
    assert bucket.objects == {}


def test_listings_come_in_pages(bucket):
    for number in range(5):
        bucket.insert(f"a/{number}", b"", ABSENT, {})
    page, after = bucket.listed("a/", "", 2)
    assert ([found.name for found in page], after) == (["a/0", "a/1"], "a/1")
    page, after = bucket.listed("a/", "a/3", 2)
    assert ([found.name for found in page], after) == (["a/4"], None)


def test_over_http():
    with GcsServer() as server:
        line = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=10)

        def ask(method, path, body=b"", **headers):
            line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = line.getresponse()
            return answer.status, answer.headers, answer.read()

        upload = "/upload/storage/v1/b/bucket/o?uploadType=resumable&ifGenerationMatch=0"
        status, headers, _ = ask("POST", upload, json.dumps({"name": "a b/c"}))
        session = headers["Location"].removeprefix(server.url)
        assert status == 200
        part = b"x" * PART_BYTES
        assert ask("PUT", session, part, Content_Range=f"bytes 0-{PART_BYTES - 1}/*")[0] == 308
        status, headers, _ = ask("PUT", session, Content_Range="bytes */*")
        assert (status, headers["Range"]) == (308, f"bytes=0-{PART_BYTES - 1}")
        status, _, body = ask("PUT", session, b"y", Content_Range=f"bytes {PART_BYTES}-{PART_BYTES}/{PART_BYTES + 1}")
        assert (status, json.loads(body)["size"]) == (200, str(PART_BYTES + 1))
        assert ask("POST", upload, json.dumps({"name": "a b/c"}))[0] == 412
        media = "/download/storage/v1/b/bucket/o/a%20b%2Fc?alt=media"
        status, headers, body = ask("GET", media, Range=f"bytes={PART_BYTES - 1}-")
        assert (status, body) == (206, b"xy")
        assert ask("GET", media, Range=f"bytes={PART_BYTES + 1}-")[0] == 416
        assert ask("DELETE", "/storage/v1/b/bucket/o/a%20b%2Fc?ifGenerationMatch=1")[0] == 412
        assert ask("DELETE", "/storage/v1/b/bucket/o/a%20b%2Fc")[0] == 204
        assert ask("GET", "/storage/v1/b/nobody/o")[0] == 404
        line.close()
