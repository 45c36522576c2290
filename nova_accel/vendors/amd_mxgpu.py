# SPDX-License-Identifier: Apache-2.0
"""Driver of AMD GPUs with SR-IOV: S7150, MI25, V620, MI300X.

AMD's host driver gim makes VFs when it is loaded (``vf_num``), never
through ``sriov_numvfs``: the kernel answers a write there with ENOENT. It
shares the card out equally and tells nobody how much that is.
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
# The counts into which gim divides cards that can't be divided at will
# (MI300X, by PCI product id of the PF).
_COUNTS: Mapping[str, tuple[int, ...]] = {"74a1": (1, 8)}

# Attributes of gim and amdgpu: the word each trait is made of, and how to
# find it. gim reports failures as a text where the value should be
# ("failed to get current mp mode"), in a read that succeeds.
_FACTS: Mapping[str, tuple[str, re.Pattern[str]]] = {
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
    """Describes AMD's GPUs whose VFs gim has made."""

    name = "amd_mxgpu"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each GPU with VFs that can be used.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in vf_card.wanted(host, rules, _is_ours):
            if str(function.address) in taken:
                continue
            reason = _count_reason(function, rule)
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
            traits, problems = _facts(function, host)
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
        yield from vf_card.orphans(host, _is_ours)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: a VF is there, and libvirt detaches it."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt gives the VF back."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return no action: only loading gim anew changes VF counts."""
        return ()


def _is_ours(function: pci.PciFunction) -> bool:
    return function.vendor == _AMD and pci_ids.is_gpu(function)


def _problem(function: pci.PciFunction, reason: str) -> model.Problem:
    return model.Problem(where=str(function.address), reason=reason)


def _count_reason(function: pci.PciFunction, rule: policy.Rule) -> str:
    """Return what is wrong with the number of VFs, empty if nothing is."""
    total, present, asked = (
        function.total_vfs,
        function.num_vfs,
        rule.num_vfs,
    )
    if not total and not present:
        return vf_card.none_to_enable(rule)
    if asked is not None and asked != present:
        return (
            f"device_spec asks for {asked} virtual functions, {present} are"
            f" enabled, and only loading gim changes that: {_mend(function)}"
        )
    if present or asked == 0:
        return ""
    if function.driver not in _DRIVERS and rule.use is not policy.DeviceUse.VF:
        return ""
    return (
        f"none of its {total} virtual functions is enabled; have gim make"
        f" them: {_mend(function)}"
    )


def _mend(function: pci.PciFunction) -> str:
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


def _facts(
    function: pci.PciFunction, host: host_reader.HostReader
) -> tuple[frozenset[str], list[model.Problem]]:
    """Return what the card's driver tells of it, as traits."""
    traits, problems = set(), []
    for name, (word, form) in _FACTS.items():
        try:
            text = host.attribute(str(function.address), name)
        except errors.UnreadableError as error:
            # gim lets nobody but root read its files, and the service is
            # not root: that is no fault of the card.
            if error.number not in (errno.ENOENT, errno.EACCES):
                problems.append(
                    _problem(function, f"{name} can't be read: {error}")
                )
            continue
        found = form.match(text)
        if found:
            traits.add(names.custom("ACCELERATOR", word, found[1]))
        else:
            problems.append(
                _problem(
                    function,
                    f"{name} is not told: {text.strip()[:40]!r}; see the"
                    " kernel's log for what its driver says",
                )
            )
    return frozenset(traits), problems
