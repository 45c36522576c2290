# SPDX-License-Identifier: Apache-2.0
"""A page of a proxy is text for the operator."""

import pytest

from placement_sync.client import http_errors

HAPROXY = (
    "<html><body><h1>503 Service Unavailable</h1>\nNo server is available"
    " to handle this request.\n</body></html>\n"
)
NGINX = (
    "<!DOCTYPE HTML>\n<html>\n<head><title>504</title><style>p {}</style>"
    "</head>\n<body><center>504 Gateway Time-out</center></body></html>"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            HAPROXY,
            "503 Service Unavailable No server is available to handle this"
            " request.",
        ),
        (NGINX, "504 Gateway Time-out"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("x" * 500, "x" * 400 + "..."),
    ],
    ids=["haproxy", "nginx", "text", "long"],
)
def test_a_body_is_one_line_without_tags(text: str, line: str) -> None:
    assert http_errors.shorten(text) == line


def test_a_long_page_takes_no_time() -> None:
    assert len(http_errors.shorten("<html>" + "<head" * 10**6)) < 500
