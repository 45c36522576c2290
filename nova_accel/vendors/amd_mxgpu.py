# SPDX-License-Identifier: Apache-2.0
"""Driver of AMD GPUs with SR-IOV: S7150, MI25, V620, MI300X.

AMD's host driver gim enables VFs when it is loaded (``vf_num``), never
through ``sriov_numvfs``: a write there fails with ENOENT. It divides the
card equally among the VFs, and no file shows a VF's share.
"""

import errno
import re
from collections.abc import Iterator, Mapping, Sequence

from nova_accel import errors, model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import iommu_group, vf_card

_AMD = "1002"
_GIM = "gim"
_DRIVERS = ("amdgpu", _GIM)
# VF counts of cards that support a few counts only (MI300X), by PCI product
# id of the PF.
_COUNTS: Mapping[str, tuple[int, ...]] = {"74a1": (1, 8)}

# Attributes of gim and amdgpu, each with the part of its trait's name and
# the pattern of its value. If gim fails, the read succeeds and returns a
# message ("failed to get current mp mode").
_ATTRIBUTES: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "spatial_partition_mode": ("SPATIAL", re.compile(r"([A-Z]PX)\b")),
    "memory_partition_mode": (
        "MEMORY",
        re.compile(r"memory_partition_mode:\s*(NPS\d+)\b"),
    ),
    "xgmi_hive_info/xgmi_hive_id": (
        "XGMI_HIVE",
        re.compile(r"(?:0x)?([0-9A-Fa-f]+)\s*$"),
    ),
}


class AmdMxgpuDriver:
    """Describes AMD GPUs whose VFs gim has enabled."""

    name = "amd_mxgpu"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each GPU with VFs that can be used.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in vf_card.find_pfs(host, rules, _is_supported):
            if str(function.address) in taken:
                continue
            reason = _check_vf_count(function, rule)
            if reason:
                yield _problem(function, reason)
            if not function.num_vfs:
                continue
            if function.driver not in (_GIM, iommu_group.UNKNOWN):
                yield _problem(
                    function,
                    "its virtual functions are not offered: they need the"
                    " driver gim on it, and it is bound to"
                    f" {function.driver or 'no driver'}",
                )
                continue
            traits, problems = _read_traits(function, host)
            yield from problems
            yield from vf_card.describe(
                vf_card.VfCard(
                    function=function,
                    plugin=self.name,
                    drivers=_DRIVERS,
                    traits=traits,
                ),
                host,
                rules,
            )
        yield from vf_card.find_vfs_without_pf(host, _is_supported)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt detaches the existing VF."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt reattaches the VF."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return no action: VF counts change only when gim is loaded."""
        return ()


def _is_supported(function: pci.PciFunction) -> bool:
    return function.vendor == _AMD and pci_ids.is_gpu(function)


def _problem(function: pci.PciFunction, reason: str) -> model.Problem:
    return model.Problem(
        where=str(function.address),
        reason=reason,
        address=str(function.address),
    )


def _check_vf_count(function: pci.PciFunction, rule: policy.Rule) -> str:
    """Return the problem with the number of VFs, or ""."""
    total, present, requested = (
        function.total_vfs,
        function.num_vfs,
        rule.num_vfs,
    )
    if not total and not present:
        return vf_card.explain_no_vfs(rule)
    if requested is not None and requested != present:
        return (
            f"device_spec asks for {requested} virtual functions,"
            f" {present} are enabled, and only loading gim changes that:"
            f" {_describe_vf_num(function)}"
        )
    if present or requested == 0:
        return ""
    if function.driver not in _DRIVERS and rule.use is not policy.DeviceUse.VF:
        return ""
    return (
        f"none of its {total} virtual functions is enabled; have gim make"
        f" them: {_describe_vf_num(function)}"
    )


def _describe_vf_num(function: pci.PciFunction) -> str:
    counts = _COUNTS.get(function.product)
    allowed = (
        " or ".join(map(str, counts))
        if counts
        else f"1 to {function.total_vfs}"
    )
    return (
        "write `options gim vf_num=N` (N for each card, from"
        f" {allowed} for this one) to a file in modprobe.d, and load gim"
        " again while no guest has a virtual function"
    )


def _read_traits(
    function: pci.PciFunction, host: host_reader.HostReader
) -> tuple[frozenset[str], list[model.Problem]]:
    """Return the traits from driver attributes, and read problems."""
    traits, problems = set(), []
    for name, (label, pattern) in _ATTRIBUTES.items():
        try:
            text = host.attribute(str(function.address), name)
        except errors.UnreadableError as error:
            # Only root may read the files of gim, and the service is not
            # root: EACCES is no fault of the card.
            if error.number not in (errno.ENOENT, errno.EACCES):
                problems.append(
                    _problem(function, f"{name} can't be read: {error}")
                )
            continue
        match = pattern.match(text)
        if match:
            traits.add(names.custom_name("ACCELERATOR", label, match[1]))
        else:
            problems.append(
                _problem(
                    function,
                    f"{name} has no value: {text.strip()[:40]!r}; see the"
                    " kernel's log for what its driver says",
                )
            )
    return frozenset(traits), problems
