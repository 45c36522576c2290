# SPDX-License-Identifier: Apache-2.0
"""Driver of Intel GPUs with SR-IOV: Flex, Max, integrated ones.

Both kernel drivers, i915 and xe, enable VFs through ``sriov_numvfs`` and
divide the card among them.
"""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci
from nova_accel.vendors import intel_quotas
from nova_accel.vendors.common import iommu_group, vf_card, vf_count

_INTEL = "8086"
_DRIVERS = ("i915", "xe")


class IntelSriovDriver:
    """Describes Intel GPUs with VFs, and plans the number of VFs."""

    name = "intel_sriov"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each GPU with VFs that can be used.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in vf_card.find_pfs(host, rules, _is_supported):
            if str(function.address) in taken:
                continue
            yield from _list_problems(function, rule, host)
            if not function.num_vfs:
                continue
            if function.driver not in (*_DRIVERS, iommu_group.UNKNOWN):
                yield model.Problem(
                    where=str(function.address),
                    reason="its virtual functions are not offered: they"
                    " need the driver i915 or xe on it, and it is bound to"
                    f" {function.driver or 'no driver'}",
                    address=str(function.address),
                )
                continue
            quotas, problems = intel_quotas.read(function, host)
            yield from problems
            yield from vf_card.describe(
                vf_card.VfCard(
                    function=function,
                    plugin=self.name,
                    drivers=_DRIVERS,
                    quotas=quotas,
                ),
                host,
                rules,
            )
        yield from vf_card.find_orphans(host, _is_supported)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt detaches the existing VF."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt reattaches the VF."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return the changes of VF counts that policy asks for.

        The host's drivers do not probe the new VFs: they are for guests.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for function, rule in vf_card.find_pfs(host, rules, _is_supported)
            if function.driver in _DRIVERS
            for action in vf_count.plan_count(function, rule, host, _DRIVERS)
        )


def _is_supported(function: pci.PciFunction) -> bool:
    return function.vendor == _INTEL and pci_ids.is_gpu(function)


def _list_problems(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> Iterator[model.Problem]:
    reason = _check_vf_count(function, rule, host)
    if reason:
        yield model.Problem(
            where=str(function.address),
            reason=reason,
            address=str(function.address),
        )


def _check_vf_count(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    total, present = function.total_vfs, function.num_vfs
    if not total and not present:
        return vf_card.explain_no_vfs(rule)
    if function.driver not in _DRIVERS:
        if present or rule.use is not policy.DeviceUse.VF:
            return ""
        return (
            f"none of its {total} virtual functions is enabled, and"
            f" {function.driver or 'no driver'} can't do that; bind it to"
            " i915 or xe"
        )
    if rule.num_vfs is not None and rule.num_vfs != present:
        return vf_count.explain_mismatch(
            function, rule.num_vfs, host, _DRIVERS
        )
    if present or rule.num_vfs == 0:
        return ""
    return (
        f"none of its {total} virtual functions is enabled; set num_vfs in"
        " a device_spec line for it, or write a number to its sriov_numvfs"
    )
