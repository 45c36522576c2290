# SPDX-License-Identifier: Apache-2.0
"""Causes of faults: of reasons as their sources write them."""

import errno

import pytest

from nova_accel import errors
from nova_accel.host.state import state_dir
from nova_accel.inventory import health
from nova_accel.model import names

CARD = "0000:41:00.0"
_GONE = health.HealthReading(address=CARD, head=b"\xff\xff")
_POWERLESS = health.HealthReading(address=CARD, power="error")
_FATAL = health.HealthReading(address=CARD, counts={"TOTAL_ERR_FATAL": 2})
_FAILURE = errors.ActionError("reset of 0000:41:00.0", errno.EIO, "see dmesg")


@pytest.mark.parametrize(
    ("reason", "causes"),
    [
        (health.judge(CARD, [_GONE], {}), {"NO_ANSWER"}),
        (health.judge(CARD, [_POWERLESS], {}), {"POWER"}),
        (health.judge(CARD, [_FATAL], {}), {"FATAL_ERRORS"}),
        (
            health.judge(CARD, [_GONE, _POWERLESS, _FATAL], {}),
            {"NO_ANSWER", "POWER", "FATAL_ERRORS"},
        ),
        (health.judge_xid(79), {"XID_79"}),
        (
            f"{health.judge_xid(79)}; {health.judge_xid(48)}",
            {"XID_79", "XID_48"},
        ),
        (health.judge_recovery(1), {"DRIVER"}),
        (
            f"could not be scrubbed after its last server: {_FAILURE}",
            {"SCRUB"},
        ),
        (f"could not be blanked: {_FAILURE}", {"BITSTREAM"}),
        (
            state_dir.describe_write_error("/d", OSError(errno.ENOSPC, "")),
            {"NO_NOTES"},
        ),
        ("its fan fails", {"OTHER"}),
        ("Xid 13: of an application", {"OTHER"}),
    ],
)
def test_a_reason_has_causes(reason: str, causes: set[str]) -> None:
    assert health.find_causes(reason) == causes


def test_each_xid_has_a_cause_in_words() -> None:
    reasons = filter(None, map(health.judge_xid, range(1000)))
    for reason in reasons:
        traits = health.build_cause_traits(reason)
        assert health.describe_causes(traits) == reason


def test_a_device_without_a_fault_has_no_trait() -> None:
    assert health.build_cause_traits("") == frozenset()
    assert health.describe_causes({names.FAULTED_TRAIT}) == ""


def test_causes_of_a_later_release_are_no_error() -> None:
    causes = ("MELTED", "XID_13", "XID_", "XID_A", "12")
    traits = {f"{names.FAULT_PREFIX}{cause}" for cause in causes}
    assert health.describe_causes(traits) == ""
