# SPDX-License-Identifier: Apache-2.0
"""Base classes of vendor drivers."""

import abc
from collections.abc import Iterable, Iterator, Sequence

from nova_accel import model
from nova_accel.config import policy, remedy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions, pci
from nova_accel.vendors.common import iommu_group, vf_card


class DriverBase:
    """Driver that plans no action, unless a subclass does."""

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: the guest gets its functions unchanged.

        libvirt detaches them from the host's drivers.
        """
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        """Return no action: libvirt reattaches the functions."""
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return no action: the cards have no mode that a reboot resets."""
        return ()


def _bind(function: pci.PciFunction, driver: str) -> str:
    return str(
        remedy.BindFunction(function=str(function.address), driver=driver)
    )


class VfDriver(DriverBase, abc.ABC):
    """Driver of PFs whose existing VFs go to guests unchanged."""

    name: str
    #: Whether each model that it supports has SR-IOV.
    has_sriov = False

    @abc.abstractmethod
    def is_supported(self, function: pci.PciFunction) -> bool:
        """Return whether this driver handles a PF."""

    def has_supported_pf(self, vf: pci.PciFunction) -> bool:
        """Return whether this driver would handle a VF's missing PF."""
        return self.is_supported(vf)

    def find_pfs(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Iterator[tuple[pci.PciFunction, policy.Rule]]:
        """Yield the PFs whose VFs policy offers, each with its rule.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return vf_card.find_pfs(host, rules, self.is_supported)

    @abc.abstractmethod
    def check_vf_count(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> str:
        """Return the problem with the number of VFs of a PF, or "".

        The PF has VFs, or can have some.
        """

    def check_mode(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> Iterable[str]:
        """Return why a PF differs from its rule; empty texts are ignored."""
        if not function.total_vfs and not function.num_vfs:
            has_sriov = self.has_sriov
            return (vf_card.explain_no_vfs(function, rule, host, has_sriov),)
        return (self.check_vf_count(function, rule, host),)

    def list_drivers(self, function: pci.PciFunction) -> tuple[str, ...]:
        """Return the kernel drivers of a PF that VFs need; empty for any."""
        return ()

    def has_driver(self, function: pci.PciFunction) -> bool:
        """Return whether a PF's driver can change its mode."""
        return function.driver in self.list_drivers(function)

    @abc.abstractmethod
    def build_card(
        self, function: pci.PciFunction, host: host_reader.HostReader
    ) -> tuple[vf_card.VfCard, Iterable[model.Problem]]:
        """Return a PF with VFs, and the problems of reading it."""

    def plan_card(
        self,
        function: pci.PciFunction,
        rule: policy.Rule,
        host: host_reader.HostReader,
    ) -> Iterable[actions.Action]:
        """Return the actions that put a PF into the mode of its rule.

        The PF has a driver that can do that.
        """
        return ()

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        """Yield one device for each PF of the card with usable VFs.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        for function, rule in self.find_pfs(card, rules):
            if str(function.address) in taken:
                continue
            for reason in filter(None, self.check_mode(function, rule, card)):
                yield model.Problem.of_device(function.address, reason)
            if not function.num_vfs:
                continue
            drivers = self.list_drivers(function)
            if drivers and function.driver not in (
                *drivers,
                iommu_group.UNKNOWN,
            ):
                yield model.Problem.of_device(
                    function.address,
                    "its virtual functions are not offered: they need the"
                    f" driver {' or '.join(drivers)} on it, and it is bound"
                    f" to {function.driver or 'no driver'};"
                    f" {_bind(function, drivers[0])}",
                )
                continue
            vf_pf, problems = self.build_card(function, card)
            yield from problems
            yield from vf_card.describe(vf_pf, card, rules)
        yield from vf_card.find_vfs_without_pf(card, self.has_supported_pf)

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        """Return the changes of modes that policy asks for.

        :raises UnreadableError: the PCI bus can't be listed.
        """
        return tuple(
            action
            for function, rule in self.find_pfs(host, rules)
            if self.has_driver(function)
            for action in self.plan_card(function, rule, host)
        )
