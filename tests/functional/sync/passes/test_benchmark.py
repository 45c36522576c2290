# SPDX-License-Identifier: Apache-2.0
"""The benchmark of passes runs on a minimal cloud."""

import re
import sys

import pytest

from tests.benchmark import passes


@pytest.mark.long
def test_an_unchanged_pass_is_one_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = "--hosts 50 --milliseconds 5 --real-hosts 2 --real-passes 2"
    monkeypatch.setattr(sys, "argv", ["passes", *size.split()])

    assert passes.main() == 0

    _, costs, *rows = capsys.readouterr().out.splitlines()
    # One list, inventories and traits of eight cards; a list of traits and
    # a write of each card.
    assert costs.startswith(
        "a pass: 1 requests, 17 after a restart, 26 if each card has changed;"
    )
    assert len(re.findall(" 0 failed passes", "\n".join(rows))) == 2
