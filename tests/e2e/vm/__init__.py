# SPDX-License-Identifier: Apache-2.0
"""Tests of the lab VM alone, without a cloud; the other tests rely on it."""

import os

import pytest

SHORT_MARKS = [
    pytest.mark.lab,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the lab VM shares files as root"
    ),
]
MARKS = [*SHORT_MARKS, pytest.mark.long]
