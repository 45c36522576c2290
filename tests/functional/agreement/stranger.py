# SPDX-License-Identifier: Apache-2.0
"""Another program on the host that makes vGPUs without Nova."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from nova_accel import model
from tests.functional.agreement import node
from tests.functional.fakehost.support.cards import store


class Stranger:
    """Creates and removes partitions with the kernel's own files."""

    def __init__(self, host: node.Node, chance: random.Random) -> None:
        self._host = host
        self._chance = chance
        #: handle -> card
        self.partitions: dict[str, str] = {}

    def act(self) -> str:
        """Create or remove a partition; return its card, "" for none."""
        if self.partitions and self._chance.randrange(2):
            return self._remove(self._chance.choice(sorted(self.partitions)))
        devices = [
            device
            for device in self._host.life.host.state.devices
            if device.technology in ("mdev", "vendor-vfio")
        ]
        device = self._chance.choice(devices)
        if device.technology == "mdev":
            return self._make_mdev(device)
        return self._type_vf(device)

    def _make_mdev(self, device: model.Device) -> str:
        places = self._host.kernel.creatable()
        options = [
            (parent, kind)
            for parent, kinds in sorted(places.items())
            if parent == device.address or parent in device.slots
            for kind, count in sorted(kinds.items())
            if count
        ]
        if not options:
            return ""
        parent, kind = self._chance.choice(options)
        handle = str(uuid.UUID(int=self._chance.getrandbits(128)))
        types = self._host.kernel.sys / f"class/mdev_bus/{parent}"
        store(types / f"mdev_supported_types/{kind}/create", handle)
        self.partitions[handle] = device.address
        return device.address

    def _type_vf(self, device: model.Device) -> str:
        options = []
        for slot in device.slots:
            lines = (self._files(slot) / "creatable_vgpu_types").read_text()
            options += [
                (slot, line.split(" ")[0]) for line in lines.splitlines()[1:]
            ]
        if not options:
            return ""
        slot, number = self._chance.choice(options)
        store(self._files(slot) / "current_vgpu_type", number)
        self.partitions[slot] = device.address
        return device.address

    def _files(self, slot: str) -> Path:
        return self._host.kernel.sys / f"bus/pci/devices/{slot}/nvidia"

    def _remove(self, handle: str) -> str:
        if ":" in handle:
            store(self._files(handle) / "current_vgpu_type", "0")
        else:
            mdevs = self._host.kernel.sys / "bus/mdev/devices"
            store(mdevs / handle / "remove", "1")
        return self.partitions.pop(handle)
