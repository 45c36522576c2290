# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium: pictures of a page, and measures of its elements."""

import dataclasses
import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

# As Debian and other distributions name it.
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_OPTIONS = (
    "--headless",
    # Chromium refuses to run as root with it.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)
_SECONDS = 180
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_RESULT = re.compile(r'<output id="measures">(.*?)</output>', re.DOTALL)
_SIGNATURE_AND_HEADER = 8 + 25
_KEYWORD = b"Page"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Browser:
    """Chromium with a window, and an empty directory for its files."""

    place: Path
    width: int
    height: int
    is_dark: bool = False

    def take_picture(self, page: str, picture: Path) -> None:
        """Write the top of a page as a PNG, as large as the window."""
        self._run(page, f"--screenshot={picture}")

    def measure(self, page: str, script: str) -> Any:
        """Return the result of a function's body in a page.

        The page itself forbids scripts: they run in a copy without its
        policy.
        """
        copy, count = _POLICY.subn("", page)
        assert count == 1
        copy += (
            '<output id="measures"></output><script>'
            "document.getElementById('measures').textContent ="
            f" JSON.stringify((() => {{{script}}})())</script>"
        )
        match = _RESULT.search(self._run(copy, "--dump-dom"))
        assert match, "no result of the script"
        return json.loads(html.unescape(match[1]))

    def _run(self, page: str, *options: str) -> str:
        file = self.place / "page.html"
        file.write_text(page)
        scheme = "0" if self.is_dark else "1"
        completed = subprocess.run(  # noqa: S603
            [
                PROGRAM,
                *_OPTIONS,
                f"--user-data-dir={self.place / 'profile'}",
                f"--window-size={self.width},{self.height}",
                f"--blink-settings=preferredColorScheme={scheme}",
                *options,
                f"file://{file}",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        return completed.stdout


def add_digest(picture: Path, digest: str) -> None:
    """Add the digest of the page to a PNG, as a text chunk."""
    content = picture.read_bytes()
    data = b"tEXt" + _KEYWORD + b"\0" + digest.encode()
    chunk = struct.pack(">I", len(data) - 4) + data
    chunk += struct.pack(">I", zlib.crc32(data))
    first = _SIGNATURE_AND_HEADER
    picture.write_bytes(content[:first] + chunk + content[first:])


def read_digest(picture: Path) -> str:
    """Return the digest in a PNG, empty without one."""
    match = re.search(
        rb"tEXt" + _KEYWORD + rb"\0([0-9a-f]{64})", picture.read_bytes()
    )
    return match[1].decode() if match else ""
