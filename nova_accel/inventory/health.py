# SPDX-License-Identifier: Apache-2.0
"""Health of devices, from counters of the kernel and of NVML.

A device is unhealthy after a hardware failure, not after an error of its
user. It accepts no new server then; present servers keep it.

Of PCI Express errors only fatal ones count: after one the link itself is
not reliable (PCI Express Base Specification, 6.2.2.2.1). Correctable errors
only cost time, and non-fatal ones don't affect the link: healthy cards count
unsupported requests at each scan of the bus. Both are ignored.

The reason of a fault is a text on the host, of any length and with
addresses; its cause is one of a few, so that Placement gets few traits. It
is found in the text, because notes of earlier releases have nothing else. A
reason can have several causes.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping

from nova_accel import model
from nova_accel.inventory import wording
from nova_accel.model import names, pci

# Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats: each line is
# a name and a count, the last one their sum.
_COUNT = "[0-9]{1,20}"  # a u64
_LINE = re.compile(rf"(\S+)\s+({_COUNT})")
_FATAL = "TOTAL_ERR_FATAL"
# A read without an answer returns ones, and no vendor has that id (PCI Local
# Bus Specification, 6.2.1). The two bytes of the vendor id.
_NO_ANSWER = b"\xff\xff"
# pci_power_names, drivers/pci/pci.c: changing the state failed.
_POWER_ERROR = "error"
_NVIDIA, _NVIDIA_DRIVER = "10de", "nvidia"

# Xid errors after which a GPU needs a reset or its host a restart, by the
# column "Immediate Action" of NVIDIA's Xid catalog
# (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): RESET_GPU
# and RESTART_BM, and 48, by its text. Left out are errors with other causes:
# 109 of applications (NVIDIA's device plugin for Kubernetes also ignores it,
# besides 13, 31, 43, 45 and 68), and those of a link whose other end may
# have failed (74, 136, 155). 154 is only a change of NVML's recommended
# action, which is read anyway.
_XIDS = {
    46: "it stopped processing",
    48: "an uncorrectable error in its memory",
    62: "its microcontroller halted",
    64: "bad memory can't be remapped",
    79: "it has fallen off its bus",
    95: "an uncontained error in its memory",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an error in its memory that can't be recovered",
    143: "it can't be initialized",
    156: "a part of it was retired",
    158: "a fatal timeout",
}
# nvmlDeviceGpuRecoveryAction_t of nvml.h. Left out are draining peer-to-peer
# traffic (3), after which NVML recommends the final action, and those from 5
# on, whose meaning differs between releases.
_RECOVERIES = {
    1: "reset it (nvidia-smi --gpu-reset)",
    2: "restart the host",
    4: "let its servers end, then reset it (nvidia-smi --gpu-reset)",
}


#: Cause of a reason with none of the others.
OTHER_CAUSE = "OTHER"
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """Error counters and states of one function.

    ``counts`` are those of fatal errors since it was enumerated, ``head``
    the first bytes of its configuration space, ``power`` its power state;
    each is empty where it can't be read.
    """

    address: str
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    head: bytes = b""
    power: str = ""

    @property
    def fatal(self) -> int | None:
        """Return the number of fatal errors, None if unknown."""
        return self.counts.get(_FATAL)

    @property
    def is_gone(self) -> bool:
        """Return whether the function does not answer any more."""
        return self.head.startswith(_NO_ANSWER)

    @property
    def is_powerless(self) -> bool:
        """Return whether the kernel failed to change its power state."""
        return self.power == _POWER_ERROR


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgment(model.Note):
    """Acknowledgment of the fatal errors of a function by an operator.

    ``fatal`` is their number at that time, as text, and ``boot`` the
    kernel's boot id: a reboot resets the counters.
    """

    fatal: str | None = None
    boot: str | None = None

    @property
    def count(self) -> int:
        """Return the number of errors, 0 without a valid one."""
        match = re.fullmatch(_COUNT, self.fatal or "")
        return int(match[0]) if match else 0


def parse_errors(text: str) -> Mapping[str, int]:
    """Return the error counters of a function, by name.

    :param text: the content of ``aer_dev_fatal``; lines of another form
        are ignored.
    """
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match[1]: int(match[2]) for match in matches if match}


def count_unacknowledged(count: int, acknowledged: int) -> int:
    """Return the number of errors that are not acknowledged.

    A count below the acknowledged one is of new errors: the function was
    enumerated again.
    """
    return count - acknowledged if count >= acknowledged else count


def judge(
    device: str,
    readings: Iterable[HealthReading],
    acknowledged: Mapping[str, int],
) -> str:
    """Return why a device is unhealthy, empty for a healthy one.

    :param device: address of the device, for the command in the text.
    :param readings: of its functions without VFs: their ids always read as
        ones by the specification.
    :param acknowledged: number of acknowledged fatal errors, by address of
        the function.
    """
    reasons = (
        reason
        for reading in readings
        for reason in (
            _explain_gone(reading),
            _explain_power(reading),
            _explain_fatal(
                device, reading, acknowledged.get(reading.address, 0)
            ),
        )
    )
    return "; ".join(filter(None, reasons))


def _explain_gone(reading: HealthReading) -> str:
    if not reading.is_gone:
        return ""
    return (
        f"{reading.address} does not answer any more, its configuration space"
        " reads as ones: look for its address in the kernel's log, reset or"
        " reseat the card; it is offered again when it answers"
    )


def _explain_power(reading: HealthReading) -> str:
    if not reading.is_powerless:
        return ""
    return (
        f"the power state of {reading.address} reads {reading.power}: look for"
        " its address in the kernel's log, and reset the card; it is offered"
        " again when that state can be read"
    )


def _explain_fatal(
    device: str, reading: HealthReading, acknowledged: int
) -> str:
    count = count_unacknowledged(reading.fatal or 0, acknowledged)
    if not count:
        return ""
    kinds = ", ".join(
        f"{name} {number}"
        for name, number in reading.counts.items()
        if number and name != _FATAL
    )
    since = "it was enumerated" if count == reading.fatal else "the last heal"
    return (
        f"{reading.address} had"
        f" {wording.count_of(count, 'uncorrectable fatal error')}"
        f" since {since}"
        f" ({kinds or 'of no known kind'}): look for them in the kernel's"
        " log, put the card in order, then run"
        f" `nova-accel heal {device}`"
    )


def judge_xid(xid: int) -> str:
    """Return why a GPU is unhealthy after an Xid error, empty if not."""
    failure = _XIDS.get(xid)
    return f"Xid {xid}: {failure}" if failure else ""


def judge_recovery(action: int | None) -> str:
    """Return why a GPU is unhealthy by its recovery action, empty if not.

    :param action: NVML's recommended action, None without one.
    """
    request = _RECOVERIES.get(action or 0)
    return f"its driver asks its operator to {request}" if request else ""


def list_gpus_in_use(host: model.HostState) -> frozenset[str]:
    """Return the addresses of healthy NVIDIA GPUs with vGPUs.

    NVML may open them: the driver keeps such a GPU initialized anyway.
    """
    return frozenset(
        device.address
        for device in host.devices
        if device.partitions
        and device.vendor_id == _NVIDIA
        and device.driver == _NVIDIA_DRIVER
        and not device.fault
        and pci.is_address(device.address)
    )


def to_faults(reasons: Mapping[str, str]) -> Mapping[str, model.Fault]:
    """Return the faults of unhealthy devices, by address.

    :param reasons: by address of the device, empty for a healthy one.
    """
    return {
        address: model.Fault(address=address, reason=reason)
        for address, reason in reasons.items()
        if reason
    }


def find_causes(reason: str) -> frozenset[str]:
    """Return the causes in the reason of a fault, at least one."""
    causes = {
        cause for cause, (regex, _) in _CAUSES.items() if regex.search(reason)
    }
    causes |= {
        f"{_XID_PREFIX}{number}"
        for number in map(int, _XID.findall(reason))
        if judge_xid(number)
    }
    return frozenset(causes or {OTHER_CAUSE})


def build_cause_traits(reason: str) -> frozenset[str]:
    """Return the traits of a device with this fault, none without one."""
    if not reason:
        return frozenset()
    causes = {f"{names.FAULT_PREFIX}{cause}" for cause in find_causes(reason)}
    return frozenset({names.FAULTED_TRAIT, *causes})


def describe_causes(traits: Collection[str]) -> str:
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
        return judge_xid(int(number))
    return _CAUSES[cause][1] if cause in _CAUSES else ""
