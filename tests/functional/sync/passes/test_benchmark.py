# SPDX-License-Identifier: Apache-2.0
"""The benchmark of passes runs on a minimal cloud."""

import re
import sys

import pytest

from tests.benchmark import passes


def test_an_unchanged_pass_is_one_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = "--hosts 50 --milliseconds 5 --real-hosts 2 --real-passes 2"
    monkeypatch.setattr(sys, "argv", ["passes", *size.split()])

    assert passes.main() == 0

    _, costs, *rows = capsys.readouterr().out.splitlines()
    # One list, and inventories and traits of eight cards.
    assert costs.startswith("a pass: 1 requests, 17 after a restart;")
    assert len(re.findall(" 0 failed passes", "\n".join(rows))) == 2
