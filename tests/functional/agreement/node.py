# SPDX-License-Identifier: Apache-2.0
"""A compute node: the library's own code on a simulated kernel.

What Nova does around it is here in small: the resource tracker hands out
slots, libvirt gives PCI functions to guests and takes them back, and the
guest holds what it has been given open.
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
from nova_accel.host.execute import action_executor
from nova_accel.host.nvml import gpu_reader
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import tree_builder
from nova_accel.model import flavors, names, providers
from tests.lab import fakehost
from tests.lab.fakehost.control.commands.controller import ENVIRONMENT
from virt_hooks.spawn import lifecycle


class Facts:
    """What NVML says, asked again when the GPUs' modes or instances did.

    All else it says never changes here; ``check`` proves it.
    """

    def __init__(self, kernel: fakehost.Controller) -> None:
        self._kernel = kernel
        self._key: object = None
        self._facts = gpu_reader.NvmlGpus({})

    def read(self) -> gpu_reader.NvmlGpus:
        """Return what nvml.read_gpus() would."""
        key = {
            address: (card["mig"], card["mixed"], card["instances"])
            for address, card in self._kernel.gpus().items()
        }
        if key != self._key:
            self._key, self._facts = key, gpu_reader.read_gpus()
        return self._facts

    def check(self) -> None:
        """Compare with a new look."""
        assert self.read() == gpu_reader.read_gpus()
        assert not self._facts.problems


class Node:
    """One compute node and its servers."""

    def __init__(
        self,
        kernel: fakehost.Controller,
        rules: policy.Policy,
        root: providers.ProviderRoot,
        chance: random.Random,
    ) -> None:
        self.kernel = kernel
        self.root = root
        self.use_nvml()
        self._chance = chance
        self._drivers = plugin.load()
        self._rules = rules
        self.facts = Facts(kernel)
        self.life = lifecycle.Lifecycle(
            self._drivers,
            rules,
            action_executor.Executor(
                str(kernel.root), read_gpus=self.facts.read
            ),
            snapshot.Snapshot(
                change_detection.ChangeDetector(
                    fs.DiskSource(kernel.root),
                    self._drivers,
                    rules,
                    self.facts.read,
                )
            ),
        )
        self.life.adopt(root)
        self.servers: dict[str, tuple[model.Slot, ...]] = {}
        self._guests: dict[str, list[int]] = {}
        self._lent: dict[str, str] = {}
        self.refresh()

    def use_nvml(self) -> None:
        """Let this process's NVML be this node's from now on."""
        os.environ[ENVIRONMENT] = str(self.kernel.socket)

    # -- reading ---------------------------------------------------------

    def refresh(self) -> None:
        """Read everything."""
        self.use_nvml()
        self.life.host.refresh()

    def pass_by(self) -> None:
        """Do what Nova's periodic task does: read what may have changed."""
        self.use_nvml()
        self.life.host.refresh_changed()

    def read_anew(self) -> model.HostState:
        """Return what a service that starts now would see."""
        self.use_nvml()
        reader = host_reader.HostReader(
            self.kernel.root, gpus=gpu_reader.read_gpus()
        )
        return scan.read(reader, self._drivers, self._rules)

    def tree(self) -> providers.ProviderTree:
        """Return the tree that the library wants."""
        found = self.life.tree(tree_builder.OWNER_TRAITS)
        assert found is not None
        return found

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
        self, provider: str, wanted: Mapping[str, int]
    ) -> tuple[model.Slot, ...] | None:
        """Return free slots as the resource tracker picks them."""
        node = self.tree().node(provider)
        assert node is not None
        held = {
            (slot.provider, slot.identifier)
            for slots in self.servers.values()
            for slot in slots
        }
        found: list[model.Slot] = []
        for name, amount in wanted.items():
            free = sorted(
                i
                for i in node.slots.get(name, ())
                if (provider, i) not in held
            )
            if name in node.slots and len(free) < amount:
                return None
            found += (
                model.Slot(
                    provider=provider, resource_class=name, identifier=i
                )
                for i in self._chance.sample(free, min(amount, len(free)))
            )
        return tuple(found)

    def spawn(
        self,
        server: str,
        group: flavors.RequestGroup,
        slots: tuple[model.Slot, ...],
        booked: model.Allocations,
    ) -> tuple[model.Claim, ...]:
        """Start a server; raises what the library raises."""
        self.use_nvml()
        made = self.life.ensure(server, (group,), slots, booked)
        self.servers[server] = slots
        self._guests[server] = [
            handle for claim in made for handle in self._open(claim)
        ]
        return made

    def destroy(self, server: str) -> None:
        """End a server and its guest."""
        self.use_nvml()
        slots = self.servers.pop(server)
        claims = self.life.claims_of(server)
        for handle in self._guests.pop(server):
            os.close(handle)
        for claim in claims:
            self._give_back(claim)
        self.life.release(server, slots, lambda _: False)

    # -- libvirt and QEMU ------------------------------------------------

    def _open(self, claim: model.Claim) -> Iterable[int]:
        """Hold what the guest has been given; yield its handles."""
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
        self._lent[place.name] = (
            driver.resolve().name if driver.exists() else ""
        )
        store(place / "driver_override", "vfio-pci")
        if driver.exists():
            store(driver / "unbind", place.name)
        store(self.kernel.sys / "bus/pci/drivers_probe", place.name)

    def _give_back(self, claim: model.Claim) -> None:
        if claim.handle not in self._lent:
            return
        place = self.kernel.sys / "bus/pci/devices" / claim.handle
        store(place / "driver_override", "\n")
        store(place / "driver/unbind", place.name)
        if self._lent.pop(claim.handle):
            store(self.kernel.sys / "bus/pci/drivers_probe", place.name)

    def close(self) -> None:
        """Let go of what guests hold."""
        for handles in self._guests.values():
            for handle in handles:
                os.close(handle)


def store(path: Path, text: str) -> None:
    """Write a kernel file once."""
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
