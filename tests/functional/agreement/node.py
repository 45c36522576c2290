# SPDX-License-Identifier: Apache-2.0
"""A compute node: the library's own code on a simulated kernel.

Nova's part is imitated: the resource tracker assigns slots, libvirt attaches
PCI functions to guests and reattaches them to the host, and the guest keeps
its devices open.
"""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from nova_accel import model
from nova_accel.config import policy
from nova_accel.discovery import change_detection, plugin, scan, snapshot
from nova_accel.host import nvml_gpus
from nova_accel.host.execute import action_executor
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names, providers
from tests.functional.fakehost.support.cards import store
from tests.lab import fakehost
from tests.lab.fakehost.control.controller import ENVIRONMENT
from virt_hooks.spawn import lifecycle


class NvmlCache:
    """NVML data, read again when modes or instances of the GPUs changed.

    NVML's other data never change here; ``check`` proves it.
    """

    def __init__(self, kernel: fakehost.Controller) -> None:
        self._kernel = kernel
        self._key: object = None
        self._gpus = nvml_gpus.NvmlGpus({})

    def read(self) -> nvml_gpus.NvmlGpus:
        """Return the same as gpu_reader.read_gpus()."""
        key = {
            address: (card["mig"], card["mixed"], card["instances"])
            for address, card in self._kernel.gpus().items()
        }
        if key != self._key:
            self._key, self._gpus = key, gpu_reader.read_gpus()
        return self._gpus

    def check(self) -> None:
        """Compare the cached data with a new read."""
        assert self.read() == gpu_reader.read_gpus()
        assert not self._gpus.problems


class Node:
    """One compute node and its servers."""

    def __init__(
        self,
        kernel: fakehost.Controller,
        rules: policy.DeviceRules,
        root: providers.ProviderRoot,
        chance: random.Random,
    ) -> None:
        self.kernel = kernel
        self.root = root
        self.select_nvml()
        self._chance = chance
        self._drivers = plugin.load()
        self._rules = rules
        self.nvml = NvmlCache(kernel)
        self.life = lifecycle.Lifecycle(
            self._drivers,
            rules,
            action_executor.Executor(
                str(kernel.root), read_gpus=self.nvml.read
            ),
            snapshot.Snapshot(
                change_detection.ChangeDetector(
                    fs.DiskSource(kernel.root),
                    self._drivers,
                    rules,
                    self.nvml.read,
                )
            ),
        )
        self.life.adopt(root)
        self.servers: dict[str, tuple[model.Slot, ...]] = {}
        self._guests: dict[str, list[int]] = {}
        self._drivers_before: dict[str, str] = {}
        self.refresh()

    def select_nvml(self) -> None:
        """Make this process's NVML show this node from now on."""
        os.environ[ENVIRONMENT] = str(self.kernel.socket)

    # -- reading ---------------------------------------------------------

    def refresh(self) -> None:
        """Read everything."""
        self.select_nvml()
        self.life.host.refresh()

    def run_periodic_task(self) -> None:
        """Read changed devices, as Nova's periodic task does."""
        self.select_nvml()
        self.life.host.refresh_changed()

    def rescan(self) -> model.HostState:
        """Return the state that a service reads at its start."""
        self.select_nvml()
        reader = host_reader.HostReader(
            self.kernel.root, gpus=gpu_reader.read_gpus()
        )
        return scan.read(reader, self._drivers, self._rules)

    def tree(self) -> providers.ProviderTree:
        """Return the tree that the library publishes."""
        tree = self.life.tree(tree_builder.OWNER_TRAITS)
        assert tree is not None
        return tree

    def providers(self) -> dict[str, model.Device]:
        """Return the devices by their providers' uuids."""
        return {
            names.provider_uuid(self.root.uuid, device.address): device
            for device in self.life.host.state.devices
        }

    def device(self, provider: str) -> model.Device:
        """Return the device of a provider."""
        return self.providers()[provider]

    # -- servers ---------------------------------------------------------

    def slots(
        self, provider: str, amounts: Mapping[str, int]
    ) -> tuple[model.Slot, ...] | None:
        """Return free slots as the resource tracker picks them."""
        node = self.tree().node(provider)
        assert node is not None
        used = {
            (slot.provider, slot.identifier)
            for slots in self.servers.values()
            for slot in slots
        }
        chosen: list[model.Slot] = []
        for name, amount in amounts.items():
            free = sorted(
                i
                for i in node.slots.get(name, ())
                if (provider, i) not in used
            )
            if name in node.slots and len(free) < amount:
                return None
            chosen += (
                model.Slot(
                    provider=provider, resource_class=name, identifier=i
                )
                for i in self._chance.sample(free, min(amount, len(free)))
            )
        return tuple(chosen)

    def spawn(
        self,
        server: str,
        group: flavors.RequestGroup,
        slots: tuple[model.Slot, ...],
        allocations: model.Allocations,
    ) -> tuple[model.Claim, ...]:
        """Start a server; raises ClaimError or ActionError of the library."""
        self.select_nvml()
        claims = self.life.ensure(server, (group,), slots, allocations)
        self.servers[server] = slots
        self._guests[server] = [
            handle for claim in claims for handle in self._open(claim)
        ]
        return claims

    def destroy(self, server: str) -> None:
        """End a server and its guest."""
        self.select_nvml()
        slots = self.servers.pop(server)
        claims = self.life.claims_of(server)
        for handle in self._guests.pop(server):
            os.close(handle)
        for claim in claims:
            self._reattach(claim)
        self.life.release(server, slots, lambda _: False)

    # -- libvirt and QEMU ------------------------------------------------

    def _open(self, claim: model.Claim) -> Iterable[int]:
        """Open the guest's devices; yield the handles."""
        bus = "mdev" if claim.technology == "mdev" else "pci"
        place = self.kernel.sys / f"bus/{bus}/devices" / claim.handle
        if bus == "pci" and claim.is_managed:
            self._detach(place)
        group = (place / "iommu_group").resolve().name
        handle = os.open(self.kernel.root / "dev/vfio" / group, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield handle

    def _detach(self, place: Path) -> None:
        """Bind a function to vfio-pci (virPCIDeviceBindToStub)."""
        driver = place / "driver"
        self._drivers_before[place.name] = (
            driver.resolve().name if driver.exists() else ""
        )
        store(place / "driver_override", "vfio-pci")
        if driver.exists():
            store(driver / "unbind", place.name)
        store(self.kernel.sys / "bus/pci/drivers_probe", place.name)

    def _reattach(self, claim: model.Claim) -> None:
        if claim.handle not in self._drivers_before:
            return
        place = self.kernel.sys / "bus/pci/devices" / claim.handle
        store(place / "driver_override", "\n")
        store(place / "driver/unbind", place.name)
        if self._drivers_before.pop(claim.handle):
            store(self.kernel.sys / "bus/pci/drivers_probe", place.name)

    def close(self) -> None:
        """Close the devices of all guests."""
        for handles in self._guests.values():
            for handle in handles:
                os.close(handle)
