# SPDX-License-Identifier: Apache-2.0
"""RestClient with good, malformed and missing responses."""

import pickle
import socket
import threading
import time

import pytest
from keystoneauth1 import session, token_endpoint
from openstack import connection

from nova_accel import errors
from placement_sync.client import rest
from tests.functional.sync.support import odd, servers

PATH = "/resource_providers?name=a"
UUID = "0f5c2d5e-9a0b-4c7a-8d41-2c1a67d9a001"


def caught(url: str, method: str = "GET") -> errors.ServiceError:
    door = rest.from_endpoint(url)
    ask = {
        "GET": door.get,
        "PUT": door.put,
        "POST": door.post,
        "DELETE": door.delete,
    }[method]
    with pytest.raises(errors.ServiceError) as found:
        ask(PATH)
    error = found.value
    assert (error.method, error.path) == (method, PATH)
    assert door.reads + door.writes == 1
    assert pickle.loads(pickle.dumps(error)).args == error.args  # noqa: S301
    return error


def test_each_method(placement: servers.Server) -> None:
    door = rest.from_endpoint(placement.url)
    made = door.post("/resource_providers", {"name": "a", "uuid": UUID})
    assert made.status == 200
    assert made.body["generation"] == 0
    path = f"/resource_providers/{UUID}"
    assert door.put("/traits/CUSTOM_A").status == 201
    assert door.put("/traits/CUSTOM_A").status == 204
    assert door.get(path).body["name"] == "a"
    assert door.delete(path).status == 204
    missing = door.get(path)
    assert (missing.status, missing.body) == (404, None)
    with pytest.raises(errors.ServiceError) as found:
        door.delete(path)
    assert found.value.status == 404
    assert (door.reads, door.writes) == (2, 5)
    asked = [r.method for r in placement.requests()]
    assert asked == ["POST", "PUT", "PUT", "GET", "DELETE", "GET", "DELETE"]


def test_microversion_is_the_newest_of_placement(
    placement: servers.Server,
) -> None:
    versions = rest.from_endpoint(placement.url).get("/").body["versions"]
    assert versions[0]["max_version"] == rest.PLACEMENT.microversion


def test_a_refusal_in_placements_words(placement: servers.Server) -> None:
    door = rest.from_endpoint(placement.url)
    door.post("/resource_providers", {"name": "a", "uuid": UUID})
    with pytest.raises(errors.ServiceError) as found:
        door.post("/resource_providers", {"name": "a"})
    assert found.value.is_conflict
    assert found.value.code == "placement.duplicate_name"
    assert "already exists" in str(found.value)
    with pytest.raises(errors.ServiceError) as found:
        door.put("/traits/lower")
    assert (found.value.status, found.value.is_transient) == (400, False)
    assert "CUSTOM_" in found.value.reason


def test_who_may_not(placement: servers.Server) -> None:
    door = rest.from_endpoint(placement.url, "somebody")
    with pytest.raises(errors.ServiceError, match="role") as found:
        door.put("/traits/CUSTOM_A")
    assert found.value.status == 403
    assert not found.value.is_transient


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    error = caught(f"http://127.0.0.1:{port}")
    assert error.status is None
    assert error.is_transient
    assert "check whether it runs" in str(error)


def test_no_answer() -> None:
    with odd.answering(None) as url:
        auth = token_endpoint.Token(url, "admin")
        door = rest.RestClient(
            lambda: connection.Connection(
                session=session.Session(auth=auth),
                placement_endpoint_override=url,
            ),
            timeout=(5, 0.2),
        )
        with pytest.raises(errors.ServiceError) as found:
            door.put(PATH)
    assert found.value.is_transient
    assert found.value.status is None
    assert "does not answer" in str(found.value)


@pytest.mark.parametrize("head", ["", "HTTP/1.1 200 OK\r\n\r\n["])
def test_an_answer_that_never_ends(head: str) -> None:
    """Each byte comes in time; the answer as a whole does not."""
    endless = head.encode() + b"1," * 400
    with odd.answering(endless, pause_s=0.05) as url:
        door = rest.from_endpoint(url)
        door.timeout = (5, 0.5)
        began = time.monotonic()
        with pytest.raises(errors.ServiceError) as found:
            door.get(PATH)
    assert time.monotonic() - began < 10
    assert found.value.is_transient


def test_a_connection_is_used_again(placement: servers.Server) -> None:
    """The deadline of one answer is not that of the next one."""
    door = rest.from_endpoint(placement.url)
    door.timeout = (5, 2.0)
    for _ in range(4):
        door.get(PATH)
        time.sleep(0.6)
    assert door.reads == 4


CUT = odd.http("200 OK", b'{"resource_providers": []}')


@pytest.mark.parametrize(
    "answer", [b"", CUT[:40], CUT[:-5]], ids=["nothing", "head", "half"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_a_connection_that_breaks(answer: bytes, method: str) -> None:
    with odd.answering(answer) as url:
        error = caught(url, method)
    assert error.status is None
    assert error.is_transient


@pytest.mark.parametrize(
    ("answer", "status", "is_transient"),
    [
        (odd.http("503 Service Unavailable", b""), 503, True),
        (odd.http("500 Oops", b'{"errors": []}'), 500, True),
        (odd.http("500 Oops", b'{"errors": "broken"}'), 500, True),
        (odd.http("502 Bad", b"<html>Bad Gateway", "text/html"), 502, True),
        (odd.http("429 Slowly", b"[]"), 429, True),
        (odd.http("404 Not Found", b"<html>", "text/html"), 404, False),
        (odd.http("405 No", b""), 405, False),
        (odd.http("200 OK", b"<html>Hello", "text/html"), None, True),
        (odd.http("200 OK", b""), None, True),
        (odd.http("200 OK", b'{"a":'), None, True),
    ],
)
def test_odd_answers(
    answer: bytes, status: int | None, is_transient: bool
) -> None:
    with odd.answering(answer) as url:
        error = caught(url)
    assert (error.status, error.is_transient) == (status, is_transient)


def test_too_old_a_placement() -> None:
    body = b'{"errors": [{"status": 406, "detail": "Version 1.39 ..."}]}'
    with odd.answering(odd.http("406 Not Acceptable", body)) as url:
        error = caught(url)
    assert "upgrade" in str(error)


def test_a_page_is_not_read_out() -> None:
    page = b"x" * 10_000
    with odd.answering(odd.http("400 Bad", page, "text/html")) as url:
        assert len(str(caught(url))) < 600


def test_an_untrusted_certificate(placement: servers.Server) -> None:
    error = caught(placement.url.replace("http:", "https:"))
    assert not error.is_transient
    assert "cafile" in str(error)


def test_no_password_of_a_url_is_told() -> None:
    error = caught("http://me:s3cret@127.0.0.1:1")
    assert "s3cret" not in str(error)


def test_it_comes_back(placement: servers.Server) -> None:
    """The same door, once the service is there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    door = rest.from_endpoint(f"http://127.0.0.1:{port}")
    with pytest.raises(errors.ServiceError):
        door.get(PATH)
    with odd.answering(odd.http("200 OK", b'{"a": 1}'), port):
        assert door.get(PATH).body == {"a": 1}


def test_threads_share_a_door(mariadb_placement: servers.Server) -> None:
    door = rest.from_endpoint(mariadb_placement.url)

    def ask(number: int) -> None:
        for other in range(5):
            door.put(f"/traits/CUSTOM_{number}_{other}")
            door.get(PATH)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (door.reads, door.writes) == (40, 40)
    asked = mariadb_placement.requests()
    assert len(asked) == 80
    assert {r.status for r in asked} == {200, 201}


def test_nova_by_its_own_version() -> None:
    """Its answers have another form than Placement's."""
    gone = b'{"itemNotFound": {"code": 404, "message": "no server"}}'
    bad = b'{"badRequest": {"code": 400, "message": "Bad marker."}}'
    with odd.answering(odd.http("404 Not Found", gone)) as url:
        door = rest.from_endpoint(url, service=rest.COMPUTE)
        assert door.get("/servers/1") == rest.Response(404)
    with odd.answering(odd.http("400 Bad Request", bad)) as url:
        door = rest.from_endpoint(url, service=rest.COMPUTE)
        with pytest.raises(errors.ServiceError, match="Bad marker"):
            door.get("/servers/detail?all_tenants=1")
