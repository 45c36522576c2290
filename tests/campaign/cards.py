# SPDX-License-Identifier: Apache-2.0
"""Changes of the cards of a host, as its operator makes them."""

import contextlib
from collections.abc import Callable
from typing import Any

from tests.campaign import world as worlds
from tests.functional.nova.support import libvirtd
from tests.lab import fakehost
from tests.lab.fakehost.technologies.nvidia import (
    nvidia_instances,
    nvidia_types,
)


class CardChanges:
    """Steps of a life that change cards; the target is a host."""

    def __init__(self, world: worlds.World) -> None:
        """Change the cards of a world's hosts."""
        self.world = world
        self.unplugged: dict[str, str] = {}
        #: What makes the cards again as they were.
        self.undo: list[Callable[[], Any]] = []

    def host_unplug(self, step: Any) -> None:
        host = str(step.target)
        card = self.world.technology.cards[0].address
        simulated = self.world.hosts[host]
        used = self.list_used(simulated)
        # The kernel would wait for the guests, half done.
        if any(name.startswith(card[:-2]) for name in used):
            raise RuntimeError("guests have parts of the card")
        mdevs = simulated.mdevs().keys()
        simulated.unplug(card)
        gone = mdevs - simulated.mdevs().keys()
        self.world.scrubs.lose_vgpus(str(simulated.root), card, gone)
        self.unplugged[host] = card

    def host_plug(self, step: Any) -> None:
        self.unplugged.pop(str(step.target), None)
        self.world.hosts[str(step.target)].plug()

    def host_set_vfs(self, step: Any) -> None:
        """Change the number of VFs, as a vendor's tool does it."""
        simulated = self.world.hosts[str(step.target)]
        address, count = next(
            (name, record["vfs"])
            for name, record in simulated.functions().items()
            if record["vfs"]
        )
        # The kernel would wait for the guests.
        used = self.list_used(simulated)
        if used & set(simulated.functions()[address]["vf_addresses"]):
            raise RuntimeError("guests have VFs of the card")
        simulated.set_vfs(address, max(1, count // 2))
        self.undo.append(lambda: simulated.set_vfs(address, count))

    def has_mig(self) -> bool:
        """Return whether cards of the hosts are in MIG mode."""
        return any(
            getattr(card, "mig", False) for card in self.world.technology.cards
        )

    def host_set_mig(self, step: Any) -> None:
        """Switch MIG mode of the first card off.

        NVIDIA's driver refuses that while the card has vGPUs: then the GPU
        instances without one are destroyed.
        """
        host = str(step.target)
        if host in self.unplugged:
            raise RuntimeError("the card is not there")
        simulated = self.world.hosts[host]
        card = self.world.technology.cards[0]
        gpu = simulated.gpus()[card.address]
        vgpus = gpu["vgpus"].values()
        self.undo.append(lambda: _restore_mig(simulated, card))
        for number in map(int, gpu["instances"]):
            if number not in {vgpu["instance"] for vgpu in vgpus}:
                _call(simulated, "compute_destroy", number, 0)
                _call(simulated, "destroy", number)
        if not vgpus:
            _set_mig(simulated, card, is_on=False)

    def host_rebind(self, step: Any) -> None:
        """Bind a free function of a card to another driver, or to none."""
        simulated = self.world.hosts[str(step.target)]
        used = self.list_used(simulated)
        name, record = next(
            (name, record)
            for name, record in sorted(simulated.functions().items())
            if record["driver"] and not record["vfs"] and name not in used
        )
        bus, mdevs = simulated.sys / "bus/pci", simulated.mdevs().keys()

        def bind(driver: str) -> None:
            libvirtd.store(bus / "devices" / name / "driver_override", driver)
            with contextlib.suppress(OSError):
                libvirtd.store(bus / "devices" / name / "driver/unbind", name)
            libvirtd.store(bus / "drivers_probe", name)

        bind("vfio-pci")
        # A driver that leaves a function ends the mdevs on it.
        gone = mdevs - simulated.mdevs().keys()
        self.world.scrubs.lose(str(simulated.root), gone)
        driver = record["driver"]
        self.undo.append(lambda: bind(driver))
        self.undo.append(lambda: bind("\n"))

    def list_used(self, simulated: Any) -> set[str]:
        """Return the functions that guests have."""
        return {
            name
            for name, record in simulated.functions().items()
            if record["in_use"]
        } | {
            record["parent"]
            for record in simulated.mdevs().values()
            if record["in_use"]
        }

    def host_restore(self, _: Any) -> None:
        """Undo the changes of the hosts' functions, as far as guests allow."""
        failed = []
        while self.undo:
            change = self.undo.pop(0)
            try:
                change()
            except (OSError, fakehost.FakehostError):
                failed.append(change)
        self.undo = failed


def _restore_mig(simulated: Any, card: Any) -> None:
    """Switch MIG mode on, and make the GPU instances of a boot script."""
    gpu = simulated.gpus()[card.address]
    if not gpu["mig"]:
        _set_mig(simulated, card, is_on=True)
    kinds = {k.name: k for k in nvidia_types.MODELS[card.model].kinds}
    for name, start in card.instances:
        if [name, start] not in gpu["instances"].values():
            kind = kinds[name]
            number = _call(simulated, "create", kind.profile_id, start)
            compute = nvidia_instances.COMPUTE[kind.slices]
            _call(simulated, "compute_create", int(number), compute)


def _set_mig(simulated: Any, card: Any, *, is_on: bool) -> None:
    simulated.set_vfs(card.address, 0)
    _call(simulated, "set_mig", int(is_on))
    simulated.set_vfs(card.address, card.enabled_vfs)


def _call(simulated: Any, name: str, *arguments: int) -> str:
    """Return what NVML answers for the first card.

    :raises RuntimeError: NVML returns an error.
    """
    code, _, answer = simulated.nvml(name, 0, *arguments).partition(" ")
    if code != "0":
        raise RuntimeError(f"NVML's {name}{arguments} returns {code}")
    return str(answer)
