# SPDX-License-Identifier: Apache-2.0
"""Driver of VFs of NVMe disks, and of PFs named in ``device_spec``.

VFs of network cards belong to Nova and Neutron, and the use of an unknown
card's VFs is unknown. They are offered only if a device_spec line says
``use`` ``vf`` for the PF.
"""

from collections.abc import Iterable, Iterator

from nova_accel import model
from nova_accel.catalog import pci_ids
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, names, pci
from nova_accel.vendors.common import driver_base, equal_functions, vf_card


class PciVfDriver(driver_base.VfDriver):
    """Describes PFs whose VFs go to guests unchanged."""

    name = "pci_vf"

    def is_supported(self, function: pci.PciFunction) -> bool:
        """Return whether no other vendor driver handles the function."""
        return not (
            function.is_bridge
            or pci_ids.is_gpu(function)
            or pci_ids.is_qat(function)
            or function.driver in pci_ids.FPGA_DRIVERS
        )

    def has_supported_pf(self, vf: pci.PciFunction) -> bool:
        return _is_nvme(vf)

    def find_pfs(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Iterator[tuple[pci.PciFunction, policy.Rule]]:
        """Yield the functions that have VFs, or should, with their rule.

        A function that a device_spec line names exactly is yielded even
        without SR-IOV, to report it.
        """
        for function, rule in super().find_pfs(host, rules):
            is_named = rule.use is policy.DeviceUse.VF and rule.is_specific
            # A glob or a vendor id also matches functions without SR-IOV.
            is_exact = rule.product_id != "*" or pci.is_address(rule.address)
            has_vfs = bool(function.total_vfs or function.num_vfs)
            if (is_named and (is_exact or has_vfs)) or (
                _is_nvme(function) and has_vfs
            ):
                yield function, rule

    def check_vf_count(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> str:
        total, present, requested = (
            function.total_vfs,
            function.num_vfs,
            rule.num_vfs,
        )
        is_met = requested is None or requested == present
        if is_met and (
            present or requested == 0 or rule.use is not policy.DeviceUse.VF
        ):
            return _compare_with_equals(function, rule, host)
        if not self.has_driver(function) and not present:
            return (
                f"none of its {total} virtual functions is enabled, and"
                f" {function.driver or 'no driver'} can't do that; bind it to"
                " its own driver"
            )
        if not is_met and requested is not None:
            return vf_card.explain_count_mismatch(function, requested, host)
        return vf_card.explain_none_enabled(
            function, rule, policy.DeviceUse.VF.value
        )

    def has_driver(self, function: pci.PciFunction) -> bool:
        """Return whether a driver that may enable VFs is bound."""
        return function.driver is not None and not function.is_vfio_bound

    def build_card(
        self, function: pci.PciFunction, host: host_reader.HostReader
    ) -> tuple[vf_card.VfCard, Iterable[model.Problem]]:
        resource_class = (
            pci_ids.NVME.vf_class
            if _is_nvme(function)
            else names.custom_name(
                "PCI", function.vendor, function.product, "VF"
            )
        )
        card = vf_card.VfCard(
            function=function,
            plugin=self.name,
            drivers=(),
            resource_class=resource_class,
            trait_prefix="ACCELERATOR_VF",
        )
        return card, ()

    def plan_card(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> Iterable[actions.Action]:
        return vf_card.plan_vf_count(function, rule, host)


def _compare_with_equals(
    function: pci.PciFunction,
    rule: policy.Rule,
    host: host_reader.HostReader,
) -> str:
    """Return that a PF lacks the driver of equals that have VFs, or ""."""
    is_free = function.driver is None or function.is_vfio_bound
    if (
        function.num_vfs
        or not is_free
        or rule.use is not policy.DeviceUse.AUTO
    ):
        return ""
    equals = equal_functions.list_bound(function, host)
    equal = next((e for e in equals if e.num_vfs), None)
    if equal is None or equal.driver is None:
        return ""
    binding = remedy.BindFunction(
        function=str(function.address), driver=equal.driver
    )
    whole = rule.amend(
        str(function.address), use=policy.DeviceUse.PASSTHROUGH.value
    )
    return (
        f"none of its {function.total_vfs} virtual functions is enabled, and"
        f" {function.driver or 'no driver'} has it, unlike {equal.address},"
        f" which {equal.driver} has; {binding}, or, to give it to guests"
        f" whole, write {whole}"
    )


def _is_nvme(function: pci.PciFunction) -> bool:
    return pci_ids.find(function) is pci_ids.NVME
