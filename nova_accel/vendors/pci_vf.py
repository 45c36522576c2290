# SPDX-License-Identifier: Apache-2.0
"""Driver of VFs of NVMe disks, and of PFs named in ``device_spec``.

VFs of network cards belong to Nova and Neutron, and the use of an unknown
card's VFs is unknown. They are offered only if a device_spec line says
``use`` ``vf`` for the PF.
"""

from collections.abc import Iterator, Sequence

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import vf_card


class PciVfDriver:
    """Describes PFs whose VFs go to guests unchanged."""

    name = "pci_vf"

    def describe(
        self,
        host: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each PF with VFs that can be used.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in _find_pfs(host, rules):
            if str(function.address) in taken:
                continue
            reason = _check_vf_count(function, rule, host)
            if reason:
                yield model.Problem(
                    where=str(function.address),
                    reason=reason,
                    address=str(function.address),
                )
            if function.num_vfs:
                yield from vf_card.describe(
                    _build_card(self.name, function), host, rules
                )
        yield from vf_card.find_vfs_without_pf(host, _is_nvme)

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt detaches the existing VF."""
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt reattaches the VF."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the changes of VF counts that policy asks for.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for function, rule in _find_pfs(host, rules)
            if _has_driver(function)
            for action in vf_card.plan_vf_count(function, rule, host)
        )


def _find_pfs(
    host: host_reader.HostReader, rules: policy.DeviceRules
) -> Iterator[tuple[pci.PciFunction, policy.Rule]]:
    """Yield the functions that have VFs, or should, with their rule.

    A function that a device_spec line names is yielded even without
    SR-IOV, to report it.
    """
    for function, rule in vf_card.find_pfs(host, rules, _is_supported):
        is_named = rule.use is policy.DeviceUse.VF and rule.is_specific
        if is_named or (_is_nvme(function) and function.total_vfs):
            yield function, rule


def _is_supported(function: pci.PciFunction) -> bool:
    """Return whether no other vendor driver handles the function."""
    return not (
        function.is_bridge
        or pci_ids.is_gpu(function)
        or pci_ids.is_qat(function)
        or function.driver in pci_ids.FPGA_DRIVERS
    )


def _is_nvme(function: pci.PciFunction) -> bool:
    return pci_ids.find(function) is pci_ids.NVME


def _has_driver(function: pci.PciFunction) -> bool:
    """Return whether a driver that may enable VFs is bound."""
    return function.driver is not None and not function.is_vfio_bound


def _check_vf_count(
    function: pci.PciFunction, rule: policy.Rule, host: host_reader.HostReader
) -> str:
    """Return the problem with the number of VFs, or ""."""
    total, present, requested = (
        function.total_vfs,
        function.num_vfs,
        rule.num_vfs,
    )
    if not total and not present:
        # A glob or a vendor id also matches functions without SR-IOV.
        is_exact = rule.product_id != "*" or pci.is_address(rule.address)
        return vf_card.explain_no_vfs(rule) if is_exact else ""
    is_met = requested is None or requested == present
    if is_met and (
        present or requested == 0 or rule.use is not policy.DeviceUse.VF
    ):
        return ""
    if not _has_driver(function) and not present:
        return (
            f"none of its {total} virtual functions is enabled, and"
            f" {function.driver or 'no driver'} can't do that; bind it to"
            " its own driver"
        )
    if not is_met and requested is not None:
        return vf_card.explain_count_mismatch(function, requested, host)
    return (
        f"none of its {total} virtual functions is enabled; set num_vfs in"
        " its device_spec line, or write a number to its sriov_numvfs"
    )


def _build_card(plugin: str, function: pci.PciFunction) -> vf_card.VfCard:
    resource_class = (
        pci_ids.NVME.vf_class
        if _is_nvme(function)
        else names.custom_name("PCI", function.vendor, function.product, "VF")
    )
    return vf_card.VfCard(
        function=function,
        plugin=plugin,
        drivers=(),
        resource_class=resource_class,
        trait_prefix="ACCELERATOR_VF",
    )
