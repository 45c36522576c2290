# SPDX-License-Identifier: Apache-2.0
"""Quotas of the VFs of Intel GPUs.

i915 (as backported by Intel) tells it below ``drm/cardN/prelim_iov`` or,
in older releases, ``drm/cardN/iov``; xe below ``sriov_admin``
(Documentation/ABI/testing, sysfs-driver-intel-xe-sriov; the memory since
Linux 7.0). Both number VFs from 1 and count memory in bytes.
"""

import errno
import re
from collections.abc import Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.host.sysfs import host_reader
from nova_accel.model import pci
from nova_accel.vendors.common import iommu_group, vf_card

_CARD = re.compile(r"card\d+")
# One per tile; a card of one tile may have no number there.
_TILE = re.compile(r"gt\d*")
# The integrated GPU is device 2 of the root bus on every Intel processor
# that has one. It has no memory of its own.
_INTEGRATED = (0, 2)
_EMPTY = (
    "the host's driver has given it {} of 0; free the card's virtual"
    " functions of guests and enable them again, with pf/auto_provisioning"
    " at 1 where the driver has that file"
)


def read(
    function: pci.PciFunction, host: host_reader.HostReader
) -> tuple[Mapping[pci.PciAddress, vf_card.VfQuota], list[model.Problem]]:
    """Return what each VF was given, and what could not be read of it."""
    problems: list[model.Problem] = []
    quotas = {}
    places = tuple(_i915_places(function, host))
    for address, number in vf_card.numbers(function, host).items():
        try:
            quotas[address] = (
                _i915_quota(function, host, places, number + 1)
                if places
                else _xe_quota(function, host, number + 1)
            )
        except errors.AcceleratorError as error:
            problems.append(
                model.Problem(
                    where=str(address),
                    reason=f"what it has been given can't be read: {error}",
                )
            )
    return quotas, problems


def _is_integrated(function: pci.PciFunction) -> bool:
    return (function.address.bus, function.address.slot) == _INTEGRATED


def _i915_places(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[str]:
    """Yield the directories in which i915 tells of its VFs."""
    address = str(function.address)
    for card in iommu_group.entries(host, address, "drm"):
        if _CARD.fullmatch(card):
            inside = iommu_group.entries(host, address, f"drm/{card}")
            for name in ("prelim_iov", "iov"):
                if name in inside:
                    yield f"drm/{card}/{name}"
                    break


def _i915_quota(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    places: Sequence[str],
    number: int,
) -> vf_card.VfQuota:
    """Return the quota of a VF, all its tiles together.

    :raises UnreadableError: a file that is there can't be read.
    :raises MalformedError: a quota is no number.
    """
    address = str(function.address)
    tiles = [
        f"{place}/vf{number}/{name}"
        for place in places
        for name in iommu_group.entries(host, address, f"{place}/vf{number}")
        if _TILE.fullmatch(name)
    ]
    tables = [_number(host, address, f"{t}/ggtt_quota") for t in tiles]
    memory = [_number(host, address, f"{t}/lmem_quota") for t in tiles]
    if tables and not any(n is None or n for n in tables):
        return vf_card.VfQuota(reason=_EMPTY.format("a ggtt_quota"))
    return _memory_quota(function, memory, "an lmem_quota")


def _xe_quota(
    function: pci.PciFunction, host: host_reader.HostReader, number: int
) -> vf_card.VfQuota:
    """Return the quota of a VF as xe tells it.

    :raises UnreadableError: the file is there and can't be read; EUCLEAN
        where the card's tiles differ.
    :raises MalformedError: the quota is no number.
    """
    name = f"sriov_admin/vf{number}/profile/vram_quota"
    memory = _number(host, str(function.address), name)
    return _memory_quota(function, [memory], "a vram_quota")


def _memory_quota(
    function: pci.PciFunction, parts: Sequence[int | None], what: str
) -> vf_card.VfQuota:
    told = [part for part in parts if part is not None]
    if not told or len(told) < len(parts) or _is_integrated(function):
        return vf_card.VfQuota()
    if not any(told):
        return vf_card.VfQuota(reason=_EMPTY.format(what))
    return vf_card.VfQuota(memory_mb=vf_card.mebibytes(sum(told)))


def _number(
    host: host_reader.HostReader, address: str, name: str
) -> int | None:
    """Return a file's number, None where there is no such file.

    :raises UnreadableError: it is there and can't be read.
    :raises MalformedError: it holds something else.
    """
    try:
        text = host.attribute(address, name).strip()
    except errors.UnreadableError as error:
        if error.number == errno.ENOENT:
            return None
        raise
    if not text.isdecimal():
        raise errors.MalformedError(name, text[:40], "a number of bytes")
    return int(text)
