# SPDX-License-Identifier: Apache-2.0
"""Download of FPGA images in the ramdisk, with a checksum."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from urllib import parse

import requests

from nova_accel import errors

# Seconds to wait for a connection, and between two parts of the content.
_TIMEOUT_S = 60
_CHUNK = 1 << 20
# The largest bitstream that the privileged code loads.
_MAX_BYTES = 2 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")
_ALGORITHMS = {64: "sha256", 128: "sha512"}


@contextlib.contextmanager
def open_image(url: str, checksum: str) -> Iterator[str]:
    """Download an image; yield its path, which is removed afterwards.

    :param checksum: SHA-256 or SHA-512 of the content, in hexadecimal.
    :raises BitstreamError: it can't be fetched, or has another checksum.
    :raises MalformedError: an argument has another form.
    """
    place = _describe_url(str(url))
    digest = str(checksum).strip().lower()
    if not _DIGEST.fullmatch(digest):
        raise errors.MalformedError(
            "checksum", digest[:20], "a SHA-256 or SHA-512 in hexadecimal"
        )
    with tempfile.TemporaryDirectory(prefix="nova-accel-") as directory:
        path = os.path.join(directory, "image")
        _fetch(url, place, path, digest)
        yield path


def _describe_url(url: str) -> str:
    """Return a URL without credentials and signature, which are secret.

    :raises MalformedError: it is no URL of HTTP.
    """
    try:
        parts = parse.urlsplit(url)
    except ValueError:  # its text quotes the URL
        parts = parse.urlsplit("")
    place = f"{parts.scheme}://{parts.hostname}{parts.path}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise errors.MalformedError("url", place, "http://… or https://…")
    return place


def _fetch(url: str, place: str, path: str, digest: str) -> None:
    content = hashlib.new(_ALGORITHMS[len(digest)])
    size = 0
    try:
        with (
            requests.get(url, stream=True, timeout=_TIMEOUT_S) as answer,
            open(path, "wb") as file,
        ):
            if not answer.ok:
                raise errors.BitstreamError(
                    place, f"the server answers {answer.status_code}"
                )
            for chunk in answer.iter_content(_CHUNK):
                size += len(chunk)
                if size > _MAX_BYTES:
                    raise errors.BitstreamError(
                        place, f"it is larger than {_MAX_BYTES} bytes"
                    )
                content.update(chunk)
                file.write(chunk)
    except requests.RequestException as error:
        # The text of the error has the whole URL.
        kind = type(error).__name__
        raise errors.BitstreamError(
            place, f"it can't be fetched ({kind}); is the server reachable?"
        ) from None
    if content.hexdigest() != digest:
        raise errors.BitstreamError(
            place,
            f"its {content.name} is {content.hexdigest()[:16]}…, not"
            f" {digest[:16]}…; correct the checksum or upload the image again",
        )
