# SPDX-License-Identifier: Apache-2.0
"""Causes of faults, as traits: what Placement says of a faulted device.

The reason of a fault is a text on the host, of any length and with
addresses; its cause is one of a few, so that Placement gets few traits. It
is found in the text, because notes of earlier releases have nothing else. A
reason can have several causes.
"""

import re
from collections.abc import Collection

from nova_accel.inventory import health
from nova_accel.model import names

#: Cause of a reason with none of the others.
OTHER = "OTHER"
#: Traits of a device that could not be read.
UNREAD_TRAITS = frozenset(
    {names.FAULTED_TRAIT, f"{names.FAULT_PREFIX}NO_ANSWER"}
)
_XID_PREFIX = "XID_"
_XID = re.compile(r"\bXid (\d+)\b")
# A pattern of the reasons, and the text of the cause.
_CAUSES: dict[str, tuple[re.Pattern[str], str]] = {
    cause: (re.compile(pattern), text)
    for cause, pattern, text in (
        (
            "SCRUB",
            "could not be scrubbed|^the scrub of|its use was changed before",
            "its scrub after a server failed or was cut off",
        ),
        (
            "REPLACED",
            "is another device than|is now the device",
            "another device is in its place, perhaps with data of a server",
        ),
        (
            "BITSTREAM",
            "be blanked|^load bitstream ",
            "a bitstream could not be loaded",
        ),
        (
            "NO_NOTES",
            "could not be noted which server had it last",
            "the state directory of its host can't be written",
        ),
        ("NO_ANSWER", "does not answer any more", "it does not answer"),
        ("POWER", "^the power state of|; the power state of", "power fails"),
        (
            "FATAL_ERRORS",
            "uncorrectable fatal error",
            "uncorrectable errors on its bus",
        ),
        (
            "DRIVER",
            "its driver asks|NVML|habanalabs says|dev_offline|xclmgmt",
            "its driver reports a failure or asks for a reset",
        ),
    )
}


def find(reason: str) -> frozenset[str]:
    """Return the causes in the reason of a fault, at least one."""
    causes = {
        cause for cause, (regex, _) in _CAUSES.items() if regex.search(reason)
    }
    causes |= {
        f"{_XID_PREFIX}{number}"
        for number in map(int, _XID.findall(reason))
        if health.judge_xid(number)
    }
    return frozenset(causes or {OTHER})


def build_traits(reason: str) -> frozenset[str]:
    """Return the traits of a device with this fault, none without one."""
    if not reason:
        return frozenset()
    causes = {f"{names.FAULT_PREFIX}{cause}" for cause in find(reason)}
    return frozenset({names.FAULTED_TRAIT, *causes})


def describe(traits: Collection[str]) -> str:
    """Return the causes in a device's traits in words, empty for none."""
    causes = sorted(
        trait.removeprefix(names.FAULT_PREFIX)
        for trait in traits
        if trait.startswith(names.FAULT_PREFIX)
    )
    return "; ".join(filter(None, map(_describe, causes)))


def _describe(cause: str) -> str:
    number = cause.removeprefix(_XID_PREFIX)
    if cause.startswith(_XID_PREFIX) and number.isdecimal():
        return health.judge_xid(int(number))
    return _CAUSES[cause][1] if cause in _CAUSES else ""
