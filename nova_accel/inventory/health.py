# SPDX-License-Identifier: Apache-2.0
"""Health of devices, judged from what the kernel and NVML count.

A device is ill where its hardware gave up on something, not where its
user did something wrong. It takes no new server then; those that run on
it keep it.

Of PCI Express errors only the fatal ones make a device ill: after one the
link itself is not reliable (PCI Express Base Specification, 6.2.2.2.1).
Correctable ones cost nothing but time, and the others, although
uncorrectable, leave the link alone: healthy cards count unsupported
requests each time that a bus is scanned. Neither is looked at.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from nova_accel import model
from nova_accel.model import pci

# Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats: each line is
# a name and a count, the last one their sum.
_COUNT = "[0-9]{1,20}"  # a u64
_LINE = re.compile(rf"(\S+)\s+({_COUNT})")
_FATAL = "TOTAL_ERR_FATAL"
# A read that nobody answers gives ones, and no vendor has that id (PCI
# Local Bus Specification, 6.2.1). Two bytes, as they lie there.
_NOBODY = b"\xff\xff"
# pci_power_names, drivers/pci/pci.c: the kernel failed to change it.
_POWER_ERROR = "error"
_NVIDIA, _NVIDIA_DRIVER = "10de", "nvidia"

# Xid errors that a GPU needs a reset or a restart of its host after, as
# the column "Immediate Action" of NVIDIA's Xid catalog says
# (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): RESET_GPU
# and RESTART_BM, and 48, whose text says so. Left out are those that may
# be another's fault: 109, which applications cause (NVIDIA's device
# plugin for Kubernetes leaves it out too, besides 13, 31, 43, 45 and 68),
# and those of a link whose other end may have failed (74, 136, 155). 154
# only tells that what NVML recommends has changed, and that is asked.
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
# nvmlDeviceGpuRecoveryAction_t of nvml.h. Draining peer-to-peer traffic
# (3) is left out: what follows from it is told only afterwards. So are
# those from 5 on, whose numbers mean other things in other releases.
_RECOVERIES = {
    1: "reset it (nvidia-smi --gpu-reset)",
    2: "restart the host",
    4: "let its servers end, then reset it (nvidia-smi --gpu-reset)",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """What the kernel shows of one function, as far as it can be read.

    ``counts`` are those of fatal errors since it was enumerated, ``head``
    the first bytes of its configuration space, empty where that is not
    known; ``power`` is its power state.
    """

    address: str
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    head: bytes = b""
    power: str = ""

    @property
    def fatal(self) -> int | None:
        """Return how many fatal errors there were, None if unknown."""
        return self.counts.get(_FATAL)

    @property
    def is_gone(self) -> bool:
        """Return whether nobody answers at its address any more."""
        return self.head.startswith(_NOBODY)

    @property
    def is_powerless(self) -> bool:
        """Return whether the kernel could not change its power state."""
        return self.power == _POWER_ERROR


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgment:
    """That somebody has seen to the fatal errors of a function.

    ``fatal`` is how many there were then, as a text, and ``boot`` the
    kernel's id of that boot: counters begin anew with the next one.
    """

    address: str
    reason: str = ""
    when: str = ""
    fatal: str | None = None
    boot: str | None = None

    @property
    def count(self) -> int:
        """Return the number of errors; 0 where the note tells none."""
        found = re.fullmatch(_COUNT, self.fatal or "")
        return int(found[0]) if found else 0


def parse_errors(text: str) -> Mapping[str, int]:
    """Return the counts of a function's error counters, by name.

    :param text: as of ``aer_dev_fatal``; lines of another form are left
        out.
    """
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {line[1]: int(line[2]) for line in found if line}


def unacknowledged(count: int, acknowledged: int) -> int:
    """Return how many errors nobody has seen to.

    Fewer than were acknowledged are new ones: the function was enumerated
    again.
    """
    return count - acknowledged if count >= acknowledged else count


def judge(
    device: str,
    signs: Iterable[HealthReading],
    acknowledged: Mapping[str, int],
) -> str:
    """Return what is wrong with a device, empty for a healthy one.

    :param device: the address by which its operator knows it.
    :param signs: of its functions, VFs left out: by the specification
        their own ids read as ones.
    :param acknowledged: how many fatal errors of each function somebody
        has seen to, by the function's address.
    """
    reasons = (
        reason
        for one in signs
        for reason in (
            _gone(one),
            _power(one),
            _fatal(device, one, acknowledged.get(one.address, 0)),
        )
    )
    return "; ".join(filter(None, reasons))


def _gone(signs: HealthReading) -> str:
    if not signs.is_gone:
        return ""
    return (
        f"{signs.address} does not answer any more, its configuration space"
        " reads as ones: look for its address in the kernel's log, reset or"
        " reseat the card; it is offered again when it answers"
    )


def _power(signs: HealthReading) -> str:
    if not signs.is_powerless:
        return ""
    return (
        f"the power state of {signs.address} reads {signs.power}: look for"
        " its address in the kernel's log, and reset the card; it is offered"
        " again when that state can be told"
    )


def _fatal(device: str, signs: HealthReading, acknowledged: int) -> str:
    count = unacknowledged(signs.fatal or 0, acknowledged)
    if not count:
        return ""
    kinds = ", ".join(
        f"{name} {number}"
        for name, number in signs.counts.items()
        if number and name != _FATAL
    )
    since = "it was enumerated" if count == signs.fatal else "the last heal"
    return (
        f"{signs.address} had {count} uncorrectable fatal"
        f" error{'s' if count > 1 else ''} since {since}"
        f" ({kinds or 'of no known kind'}): look for them in the kernel's"
        " log, put the card in order, then run"
        f" `nova-accel heal {device}`"
    )


def judge_xid(xid: int) -> str:
    """Return what an Xid error says of a GPU; empty for a healthy one."""
    words = _XIDS.get(xid)
    return f"Xid {xid}: {words}" if words else ""


def judge_recovery(action: int | None) -> str:
    """Return what a recovery action says of a GPU; empty for none.

    :param action: as NVML tells it, None if it does not.
    """
    words = _RECOVERIES.get(action or 0)
    return f"its driver asks its operator to {words}" if words else ""


def gpus_in_use(host: model.HostState) -> frozenset[str]:
    """Return the addresses of NVIDIA's GPUs that hold vGPUs, and are well.

    Its driver holds such a GPU in any case, so NVML may hold it too.
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


def ill(reasons: Mapping[str, str]) -> Mapping[str, model.Fault]:
    """Return reasons as faults, those of healthy devices left out.

    :param reasons: by the device's address.
    """
    return {
        address: model.Fault(address=address, reason=reason)
        for address, reason in reasons.items()
        if reason
    }
