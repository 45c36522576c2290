# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel GPUs with SR-IOV: Flex, Max, integrated ones.

Both kernel drivers, i915 and xe, enable VFs through ``sriov_numvfs`` and
divide the card among them. The quotas of the VFs: i915 (as backported by
Intel) has them below ``drm/cardN/prelim_iov`` or, in older releases,
``drm/cardN/iov``; xe has them below ``sriov_admin``
(Documentation/ABI/testing, sysfs-driver-intel-xe-sriov; the memory since
Linux 7.0). Both number VFs from 1 and count memory in bytes.
"""

import errno
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import attributes, host_reader
from nova_accel.model import actions, pci
from nova_accel.vendors.common import driver_base, iommu_group, vf_card

_INTEL = "8086"
_DRIVERS = ("i915", "xe")


class IntelSriovDriver(driver_base.VfDriver):
    """Describes Intel GPUs with VFs, and plans the number of VFs."""

    name = "intel_sriov"

    def is_supported(self, function: pci.PciFunction) -> bool:
        return function.vendor == _INTEL and pci_ids.is_gpu(function)

    def check_vf_count(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> str:
        present = function.num_vfs
        if function.driver not in _DRIVERS:
            if present or rule.use is not policy.DeviceUse.VF:
                return ""
            return vf_card.explain_wrong_driver(function, rule, "xe")
        if not present and rule.num_vfs != 0:
            if reason := _explain_no_sriov(function, host):
                return reason
        if rule.num_vfs is not None and rule.num_vfs != present:
            return vf_card.explain_count_mismatch(
                function, rule.num_vfs, host, _DRIVERS
            )
        if present or rule.num_vfs == 0:
            return ""
        return vf_card.explain_none_enabled(function, rule)

    def list_drivers(self, function: pci.PciFunction) -> tuple[str, ...]:
        return _DRIVERS

    def build_card(
        self, function: pci.PciFunction, host: host_reader.HostReader
    ) -> tuple[vf_card.VfCard, Iterable[model.Problem]]:
        card = vf_card.VfCard(
            function=function,
            plugin=self.name,
            drivers=_DRIVERS,
            quotas=_read_quotas(function, host),
        )
        return card, ()

    def plan_card(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> Iterable[actions.Action]:
        if not function.num_vfs and _explain_no_sriov(function, host):
            return ()
        return vf_card.plan_vf_count(function, rule, host, _DRIVERS)


_CARD = re.compile(r"card\d+")
# One per tile; the number may be missing on a card with one tile.
_TILE = re.compile(r"gt\d*")
# The integrated GPU is device 2 of the root bus on every Intel processor
# that has one. It has no memory of its own.
_INTEGRATED = (0, 2)
_EMPTY = (
    "the host's driver has given it {} of 0; free the card's virtual"
    " functions of guests and enable them again, with pf/auto_provisioning"
    " at 1 where the driver has that file"
)


def _read_quotas(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Mapping[pci.PciAddress, vf_card.VfQuota]:
    """Return the quotas of VFs by address.

    A VF whose quota can't be read can't be used: without a size it would
    be offered as one that has no memory of its own.
    """
    quotas = {}
    i915_directories = tuple(_list_i915_directories(function, host))
    for address, number in vf_card.read_vf_numbers(function, host).items():
        try:
            quotas[address] = (
                _read_i915_quota(function, host, i915_directories, number + 1)
                if i915_directories
                else _read_xe_quota(function, host, number + 1)
            )
        except errors.AcceleratorError as error:
            quotas[address] = vf_card.VfQuota(
                reason=f"its quota can't be read: {error}"
            )
    return quotas


def _explain_no_sriov(
    function: pci.PciFunction, host: host_reader.HostReader
) -> str:
    """Return that the driver i915 of a GPU can't enable VFs, or "".

    The kernel's own i915 has no SR-IOV, and refuses each number with ENOENT.
    One that has it (Intel's backport, i915-sriov-dkms) makes a directory in
    that of the card. xe sets ``sriov_totalvfs`` to 0 where it has none.
    """
    address = str(function.address)
    cards = [
        name
        for name in iommu_group.list_entries(host, address, "drm")
        if _CARD.fullmatch(name)
    ]
    if (
        function.driver != "i915"
        or not cards
        or any(_list_i915_directories(function, host))
    ):
        return ""
    return (
        f"none of its {function.total_vfs} virtual functions can be enabled:"
        f" this i915 has no SR-IOV (no drm/{cards[0]}/iov); use the driver xe"
        f" (i915.force_probe=!{function.product}"
        f" xe.force_probe={function.product} on the command line of a kernel"
        " whose xe has SR-IOV for this GPU), or an i915 that has it"
        " (i915-sriov-dkms)"
    )


def _is_integrated(function: pci.PciFunction) -> bool:
    return (function.address.bus, function.address.slot) == _INTEGRATED


def _list_i915_directories(
    function: pci.PciFunction, host: host_reader.HostReader
) -> Iterator[str]:
    """Yield the directories in which i915 describes its VFs."""
    address = str(function.address)
    for card in iommu_group.list_entries(host, address, "drm"):
        if _CARD.fullmatch(card):
            inside = iommu_group.list_entries(host, address, f"drm/{card}")
            for name in ("prelim_iov", "iov"):
                if name in inside:
                    yield f"drm/{card}/{name}"
                    break


def _read_i915_quota(
    function: pci.PciFunction,
    host: host_reader.HostReader,
    directories: Sequence[str],
    number: int,
) -> vf_card.VfQuota:
    """Return the quota of a VF, summed over its tiles.

    :raises UnreadableError: a file that is there can't be read.
    :raises MalformedError: a quota is not a number.
    """
    address = str(function.address)
    tiles = [
        f"{directory}/vf{number}/{name}"
        for directory in directories
        for name in iommu_group.list_entries(
            host, address, f"{directory}/vf{number}"
        )
        if _TILE.fullmatch(name)
    ]
    table_sizes = [
        _read_number(host, address, f"{tile}/ggtt_quota") for tile in tiles
    ]
    memory_sizes = [
        _read_number(host, address, f"{tile}/lmem_quota") for tile in tiles
    ]
    if table_sizes and not any(n is None or n for n in table_sizes):
        return vf_card.VfQuota(reason=_EMPTY.format("a ggtt_quota"))
    return _build_quota(function, memory_sizes, "an lmem_quota")


def _read_xe_quota(
    function: pci.PciFunction, host: host_reader.HostReader, number: int
) -> vf_card.VfQuota:
    """Return the quota of a VF in the file of xe.

    :raises UnreadableError: the file exists and can't be read; EUCLEAN if
        the quotas of the card's tiles differ.
    :raises MalformedError: the quota is not a number.
    """
    name = f"sriov_admin/vf{number}/profile/vram_quota"
    memory = _read_number(host, str(function.address), name)
    return _build_quota(function, [memory], "a vram_quota")


def _build_quota(
    function: pci.PciFunction, tile_sizes: Sequence[int | None], file_name: str
) -> vf_card.VfQuota:
    sizes = [part for part in tile_sizes if part is not None]
    if not sizes or len(sizes) < len(tile_sizes) or _is_integrated(function):
        return vf_card.VfQuota()
    if not any(sizes):
        return vf_card.VfQuota(reason=_EMPTY.format(file_name))
    return vf_card.VfQuota(memory_mb=vf_card.to_mebibytes(sum(sizes)))


def _read_number(
    host: host_reader.HostReader, address: str, name: str
) -> int | None:
    """Return a file's number, None if there is no such file.

    :raises UnreadableError: the file exists and can't be read.
    :raises MalformedError: its content is not a decimal number.
    """
    try:
        text = host.attribute(address, name).strip()
    except errors.UnreadableError as error:
        if error.number == errno.ENOENT:
            return None
        raise
    number = attributes.parse_number(text)
    if number is None:
        raise errors.MalformedError(name, text[:40], "a number of bytes")
    return number
