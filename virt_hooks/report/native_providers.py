# SPDX-License-Identifier: Apache-2.0
"""Providers of Nova's own vGPU support, of devices that this host offers.

Nova creates a provider for each parent of mdevs, named ``NODE_pci_…`` or
``NODE_mtty_mtty`` after its libvirt node device (nova/virt/libvirt/driver.py,
_ensure_pgpu_providers). After ``[devices] enabled_mdev_types`` is emptied it
neither reports nor deletes them: the device would be offered twice, and a
server that gets one of them would be started without a vGPU.

``close`` reserves all their units, with Nova's locks not held. ``remove``
then removes the unused ones from Nova's tree: a closed provider gets no
allocation, so that Nova's delete of it succeeds.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import os_resource_classes
from nova import context as nova_context

from nova_accel.config import conf
from nova_accel.inventory import conditions
from nova_accel.model import names, pci, providers
from placement_sync.client import calls, provider_records
from virt_hooks.report import (
    nova_provider_tree,
    provider_writer,
    server_allocations,
)
from virt_hooks.spawn import lifecycle

LOG = logging.getLogger(__name__)

# Trait of the providers of Nova's PCI devices (os-traits).
_PCI_TRAIT = "COMPUTE_MANAGED_PCI_DEVICE"
_SECTION, _OPTION = "mdev_", "mdev_class"


class NativeProviders:
    """Closes and removes providers of Nova's own vGPU support."""

    def __init__(
        self,
        accel: lifecycle.Lifecycle,
        allocations: server_allocations.ServerAllocations,
        writer: provider_writer.ProviderWriter,
        options: Any,
    ) -> None:
        """Read nothing yet.

        :param options: the service's ``oslo_config.cfg.ConfigOpts``.
        """
        self._accel, self._allocations = accel, allocations
        self._writer = writer
        self._classes = read_mdev_classes(options)
        self._unused: frozenset[str] = frozenset()
        #: Consumers and our own provider of the device; None: not read yet.
        self._uses: frozenset[tuple[str, str]] | None = None
        #: Devices whose servers were logged.
        self._logged: frozenset[str] = frozenset()

    def close(
        self, nova_tree: Any, list_reported: Callable[[], Iterable[str]]
    ) -> None:
        """Reserve all units of the providers, and read their consumers.

        :param nova_tree: Nova's provider tree, None before its first pass.
        :param list_reported: returns the names of the libvirt node devices
            that Nova reports now; their providers stay as they are.
        :raises ServiceError: Placement can't be read.
        """
        root = self._accel.root
        if root is None:
            return
        devices = self._list_devices(root)
        natives: dict[str, str] = {}
        if self._is_any_present(devices, nova_tree, root):
            reported = {f"{root.name}_{name}" for name in list_reported()}
            devices = {n: d for n, d in devices.items() if n not in reported}
            natives = self._close(devices, root)
        consumers = {
            uuid: frozenset(self._allocations.consumers_of(uuid) or ())
            for uuid in natives
        }
        self._unused = frozenset(
            u for u, used in consumers.items() if not used
        )
        self._uses = frozenset(
            (consumer, names.provider_uuid(root.uuid, natives[uuid]))
            for uuid, used in consumers.items()
            for consumer in used
        )
        self._log_used(natives, consumers)

    def remove(self, nova_tree: Any) -> None:
        """Remove unused providers from Nova's tree; no I/O, idempotent."""
        for uuid in self._unused:
            if nova_tree.exists(uuid):
                nova_tree.remove(uuid)

    def is_pending(self, consumer: str, provider: str) -> bool:
        """Return whether a server's allocations are still Nova's own.

        True while Nova's provider of the same device, or a part of it, is
        allocated to the server, and before that is known.

        :param provider: uuid of our own provider of the device.
        """
        return self._uses is None or (consumer, provider) in self._uses

    def _list_devices(self, root: providers.ProviderRoot) -> dict[str, str]:
        """Return addresses of offered devices by the names of providers."""
        devices = {}
        host = self._accel.host.state
        for device in host.devices:
            for address in (device.address, *device.slots, *device.members):
                if not device.counters:
                    continue
                owner = conditions.find_device(host, address) or device
                devices[_provider_name(root, address)] = owner.address
        return devices

    def _is_any_present(
        self,
        provider_names: Collection[str],
        nova_tree: Any,
        root: providers.ProviderRoot,
    ) -> bool:
        if nova_tree is not None:
            return any(map(nova_tree.exists, provider_names))
        listed = provider_records.list_providers(
            self._allocations.get(), {"in_tree": root.uuid}
        )
        return any(provider.name in provider_names for provider in listed)

    def _close(
        self, devices: Mapping[str, str], root: providers.ProviderRoot
    ) -> dict[str, str]:
        """Close providers; return their devices' addresses by their uuids."""
        natives: dict[str, str] = {}

        def plan(nova_tree: Any) -> list[calls.ProviderCall]:
            natives.clear()
            planned: list[calls.ProviderCall] = []
            for name, address in devices.items():
                if not is_native(nova_tree, name, root, self._classes):
                    continue
                node = nova_provider_tree.read_node(nova_tree.data(name))
                natives[node.uuid] = address
                closed = _reserve_all(node.inventories)
                if closed != node.inventories:
                    planned.append(
                        calls.SetInventories(
                            uuid=node.uuid, name=name, inventories=closed
                        )
                    )
            return planned

        context = nova_context.get_admin_context()
        return natives if self._writer.change(context, root, plan) else {}

    def _log_used(
        self,
        natives: Mapping[str, str],
        consumers: Mapping[str, frozenset[str]],
    ) -> None:
        """Log the servers of each device once."""
        used: dict[str, set[str]] = {}
        for uuid, address in natives.items():
            if consumers[uuid]:
                used.setdefault(address, set()).update(consumers[uuid])
        for address in sorted(used.keys() - self._logged):
            LOG.error(
                "Servers %s have vGPUs of Nova's own support on %s, which"
                " nova-accel offers, too: Nova's resource provider of it is"
                " closed (reserved = total). They keep their vGPUs; delete"
                " or move them, and the provider is removed with the next"
                " pass",
                ", ".join(sorted(used[address])),
                address,
            )
        self._logged = frozenset(used)


def read_mdev_classes(options: Any) -> frozenset[str]:
    """Return the classes of mdevs that the configuration files name.

    Nova registers ``mdev_class`` for the types that are enabled only, so
    that the sections of former types are read from the files.

    :param options: the service's ``oslo_config.cfg.ConfigOpts``.
    """
    return frozenset({os_resource_classes.VGPU}) | {
        value
        for _, sections in conf.read_sections(options)
        for section, keys in sections.items()
        if section.startswith(_SECTION)
        for value in keys.get(_OPTION, ())
    }


def is_native(
    nova_tree: Any,
    name: str,
    root: providers.ProviderRoot,
    classes: frozenset[str],
) -> bool:
    """Return whether a provider is one of Nova's own vGPU support.

    :param nova_tree: a ``nova.compute.provider_tree.ProviderTree``.
    :param name: as Nova names the provider of an mdev parent.
    :param classes: result of ``read_mdev_classes``.
    """
    if not nova_tree.exists(name):
        return False
    data = nova_tree.data(name)
    if names.NOVA_OWNER_TRAIT in data.traits:
        classes |= {c for c in data.inventory if c.startswith(names.CUSTOM)}
    return (
        data.parent_uuid == root.uuid
        and not data.traits & {_PCI_TRAIT, names.OWNER_TRAIT}
        and len(data.inventory) == 1
        and data.inventory.keys() <= classes
        and len(nova_tree.get_provider_uuids(name)) == 1
    )


def _reserve_all(
    inventories: Mapping[str, providers.Inventory],
) -> dict[str, providers.Inventory]:
    """Return inventories without capacity.

    No operator's value is lost: Nova writes ``reserved`` with each report.
    """
    return {
        name: dataclasses.replace(inventory, reserved=inventory.total)
        for name, inventory in inventories.items()
    }


def _provider_name(root: providers.ProviderRoot, address: str) -> str:
    return f"{root.name}_{pci.nodedev_name(address)}"
