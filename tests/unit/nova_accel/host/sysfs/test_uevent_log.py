# SPDX-License-Identifier: Apache-2.0
"""The log of uevents names functions, and shows that events may be missing."""

import pytest

from nova_accel.host.sysfs import udev

CARD = "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
MDEV = "/devices/pci0000:3a/0000:3b:00.4/0f0e6f0a-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("subsystem", "action", "path", "name"),
    [
        ("pci", "bind", CARD, "0000:3b:00.0"),
        ("pci", "change", CARD, "0000:3b:00.0"),
        ("pci", "add", CARD, ""),
        ("pci", "remove", CARD, ""),
        ("mdev", "add", MDEV, "0000:3b:00.4"),
        ("drm", "change", f"{CARD}/drm/card1", "0000:3b:00.0"),
        ("mdev", "add", "/devices/virtual/mtty/mtty/0f0e", ""),
    ],
)
def test_the_function_of_an_event(
    subsystem: str, action: str, path: str, name: str
) -> None:
    assert udev.parse_function(subsystem, action, path) == name


def test_a_log_is_complete_from_its_first_reading_on() -> None:
    log = udev.UeventLog()
    log.add("0000:3b:00.0")
    assert log.take() is None, "no monitor runs"
    log.set_open(True)
    log.add("0000:3b:00.0")
    assert log.take() is None, "an event may have come before"
    log.add("0000:3b:00.0")
    log.add("0000:3b:00.4")
    assert log.take() == frozenset({"0000:3b:00.0", "0000:3b:00.4"})
    assert log.take() == frozenset()
    log.add("")
    log.add("0000:3b:00.4")
    assert log.take() is None, "an event named no function"
    assert log.take() == frozenset()
    log.set_open(False)
    assert log.take() is None
