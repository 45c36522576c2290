# SPDX-License-Identifier: Apache-2.0
"""Driver of VFs of NVMe disks, and of what ``device_spec`` names.

A network card's VFs belong to Nova and Neutron, and nobody here knows
what an unknown card's can do: those are offered only where a device_spec
line says ``use`` ``vf`` for the PF.
"""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import vf_card, vf_count


class PciVfDriver:
    """Describes PFs whose VFs are given to guests as they are."""

    name = "pci_vf"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.Policy,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each PF with VFs that can be used.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in _wanted(host, rules):
            if str(function.address) in taken:
                continue
            reason = _count_reason(function, rule, host)
            if reason:
                yield model.Problem(where=str(function.address), reason=reason)
            if function.num_vfs:
                yield from vf_card.describe(
                    _card(self.name, function), host, rules
                )
        yield from vf_card.orphans(host, _is_nvme)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: a VF is there, and libvirt detaches it."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt gives the VF back."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.Policy
    ) -> Sequence[actions.Action]:
        """Return the changes of VF counts that policy asks for.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for function, rule in _wanted(host, rules)
            if _has_driver(function)
            for action in vf_count.change(function, rule, host)
        )


def _wanted(
    host: host_reader.HostReader, rules: policy.Policy
) -> Iterator[tuple[pci.PciFunction, policy.Rule]]:
    """Yield the PFs, or what should be one, whose VFs policy offers."""
    for function, rule in vf_card.wanted(host, rules, _is_ours):
        is_named = rule.use is policy.DeviceUse.VF and rule.is_specific
        if is_named or (_is_nvme(function) and function.total_vfs):
            yield function, rule


def _is_ours(function: pci.PciFunction) -> bool:
    """Return whether no other driver knows how to make its VFs."""
    return not (
        function.is_bridge
        or pci_ids.is_gpu(function)
        or pci_ids.is_qat(function)
        or function.driver in pci_ids.FPGA_DRIVERS
    )


def _is_nvme(function: pci.PciFunction) -> bool:
    return pci_ids.find(function) is pci_ids.NVME


def _has_driver(function: pci.PciFunction) -> bool:
    """Return whether a driver is bound that may make VFs."""
    return function.driver is not None and not function.is_vfio_bound


def _count_reason(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return what is wrong with the number of VFs, empty if nothing is."""
    total, present, asked = (
        function.total_vfs,
        function.num_vfs,
        rule.num_vfs,
    )
    if not total and not present:
        # A glob, or a vendor, speaks of much that has none to begin with.
        is_exact = rule.product_id != "*" or pci.is_address(rule.address)
        return vf_card.none_to_enable(rule) if is_exact else ""
    is_met = asked is None or asked == present
    if is_met and (
        present or asked == 0 or rule.use is not policy.DeviceUse.VF
    ):
        return ""
    if not _has_driver(function) and not present:
        return (
            f"none of its {total} virtual functions is enabled, and"
            f" {function.driver or 'no driver'} can't do that; bind it to"
            " its own driver"
        )
    if not is_met and asked is not None:
        return vf_count.unmet(function, asked, host)
    return (
        f"none of its {total} virtual functions is enabled; set num_vfs in"
        " its device_spec line, or write a number to its sriov_numvfs"
    )


def _card(plugin: str, function: pci.PciFunction) -> vf_card.VfCard:
    resource_class = (
        pci_ids.NVME.vf_class
        if _is_nvme(function)
        else names.custom("PCI", function.vendor, function.product, "VF")
    )
    return vf_card.VfCard(
        function=function,
        plugin=plugin,
        drivers=(),
        resource_class=resource_class,
        stem="ACCELERATOR_VF",
    )
