# SPDX-License-Identifier: Apache-2.0
"""FPGA images are fetched whole, or not at all."""

import functools
import hashlib
import http.server
import pathlib
import threading
from collections.abc import Iterator

import pytest

from nova_accel import errors
from virt_hooks.ironic import image_download

CONTENT = b"an FPGA image"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SHA512 = hashlib.sha512(CONTENT).hexdigest()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("images")
    (place / "image").write_bytes(CONTENT)
    serve = functools.partial(QuietHandler, directory=str(place))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("checksum", [SHA256, SHA512, SHA256.upper()])
def test_an_image_is_removed_after_its_use(url: str, checksum: str) -> None:
    with image_download.open_image(f"{url}/image", checksum) as name:
        path = pathlib.Path(name)
        assert path.read_bytes() == CONTENT
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("path", "checksum", "text"),
    [
        ("/image", "0" * 64, "its sha256 is"),
        ("/absent", SHA256, "answers 404"),
        ("/image", "abc", "SHA-256 or SHA-512"),
    ],
)
def test_another_content_is_refused(
    url: str, path: str, checksum: str, text: str
) -> None:
    with (
        pytest.raises(errors.AcceleratorError, match=text),
        image_download.open_image(url + path, checksum),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/shadow", "ftp://host/image", "http://", "http://[", ""],
)
def test_only_http_is_fetched(url: str) -> None:
    with (
        pytest.raises(errors.MalformedError, match="https"),
        image_download.open_image(url, SHA256),
    ):
        pytest.fail("it was opened")


def test_an_error_has_no_credentials() -> None:
    url = "http://user:secret@127.0.0.1:1/image?signature=secret"
    with (
        pytest.raises(errors.BitstreamError) as caught,
        image_download.open_image(url, SHA256),
    ):
        pytest.fail("it was opened")
    assert "http://127.0.0.1/image" in str(caught.value)
    assert "secret" not in str(caught.value)
