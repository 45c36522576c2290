# SPDX-License-Identifier: Apache-2.0
"""Random servers with regions, on a mounted simulated kernel.

Fewer than in test_random.py, and of fewer kinds, but through real
files, real calls and real programs.
"""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel import errors, model
from nova_accel.model import names
from tests.functional.fakehost.support.cards import store
from tests.lab import fakehost
from tests.support.fpga import simulated
from tests.support.hosts import domains
from tests.support.hosts.simulated import ROOT

pytestmark = pytest.mark.fakehost

STEPS = int(os.environ.get("FPGA_MOUNTED_STEPS", "150"))
SEED = int(os.environ.get("FPGA_SEED", "20261121"))
SPEC = fakehost.HostSpec(
    cards=(
        fakehost.DflCard(address=simulated.PAC),
        fakehost.DflCard(
            address=simulated.SPLIT,
            functions=(simulated.NLB0, simulated.A),
            released=2,
        ),
        fakehost.IntelFpgaCard(address=simulated.LEGACY),
        fakehost.AlveoCard(address=simulated.ALVEO),
    )
)
#: Region, and the function that goes to a guest.
PLACES = {
    (simulated.PAC, 0): simulated.PAC,
    (simulated.SPLIT, 0): simulated.SPLIT_VFS[0],
    (simulated.SPLIT, 1): simulated.SPLIT_VFS[1],
    (simulated.LEGACY, 0): simulated.LEGACY,
    (simulated.ALVEO, 0): simulated.USER,
}
Key = tuple[str, int]


class Lives:
    """A node, one server for a region at most."""

    def __init__(self, host: fakehost.Controller, place: Path) -> None:
        self.host = host
        self.place = place
        self.chance = random.Random(SEED)  # noqa: S311 - no secret
        self.servers: dict[Key, model.Bitstream] = {}
        self.guests: dict[Key, int] = {}
        self.faulted: set[Key] = set()
        self.spawned = self.failed = 0
        self.restart()

    def restart(self) -> None:
        """Restart the service."""
        self.life = simulated.started(
            self.host.root,
            state_dir=self.place / "state",
            domains=domains.SimulatedDomains(
                lambda: simulated.using(*self.functions_in_use())
            ),
        )
        for key in self.servers:
            self.life.restore(name(key), (self.slot(key),))

    def functions_in_use(self) -> set[str]:
        return {PLACES[key] for key in self.guests}

    def slot(self, key: Key) -> model.Slot:
        return model.Slot(
            provider=names.provider_uuid(
                ROOT.uuid, names.region_address(*key)
            ),
            resource_class=names.FPGA_CLASS,
            identifier=PLACES[key],
        )

    def ensure(self, key: Key, bitstream: model.Bitstream) -> bool:
        """Assign a region, and check it by the kernel's own records."""
        before = self.host.programmings()
        try:
            self.life.ensure(
                name(key),
                (simulated.asks(bitstream.name),),
                (self.slot(key),),
                bitstreams={bitstream.name: bitstream},
            )
        except errors.ProgrammingError:
            assert key not in self.faulted
            self.faulted.add(key)
            self.failed += 1
            return False
        except (errors.ClaimError, errors.ActionError):
            assert self.host.programmings() == before
            return False
        finally:
            for programming in self.host.programmings():
                assert not programming["is_group_open"]
                assert programming["driver"] != "vfio-pci"
        part = self.host.fpgas()[key[0]]["parts"][key[1]]
        assert part["function"] == bitstream.function
        assert part["is_enabled"]
        assert key not in self.faulted
        return True

    def spawn(self) -> None:
        free = [key for key in PLACES if key not in self.servers]
        if not free:
            return
        key = self.chance.choice(free)
        directive = self.chance.choice(("", "", "", "SAME", "ERROR", "REFUSE"))
        bitstream = simulated.bitstream(
            self.place,
            self.chance.choice((simulated.A, simulated.B, simulated.C)),
            directive,
            is_xclbin=key[0] == simulated.ALVEO,
        )
        if self.ensure(key, bitstream):
            self.servers[key] = bitstream
            self.start(key)
            self.spawned += 1
        else:
            self.life.release(name(key), (self.slot(key),), lambda _: False)

    def start(self, key: Key) -> None:
        """Give the function to a guest, which holds it."""
        address = PLACES[key]
        place = self.host.sys / "bus/pci/devices" / address
        store(place / "driver_override", "vfio-pci")
        if (place / "driver").exists():
            store(place / "driver/unbind", address)
        store(self.host.sys / "bus/pci/drivers_probe", address)
        group = (place / "iommu_group").resolve().name
        handle = os.open(self.host.root / "dev/vfio" / group, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.guests[key] = handle

    def stop(self, key: Key) -> None:
        """End the guest and give the function back to the host."""
        os.close(self.guests.pop(key))
        place = self.host.sys / "bus/pci/devices" / PLACES[key]
        store(place / "driver_override", "\n")
        store(place / "driver/unbind", PLACES[key])
        store(self.host.sys / "bus/pci/drivers_probe", PLACES[key])

    def reboot(self) -> None:
        if self.guests:
            key = self.chance.choice(sorted(self.guests))
            self.stop(key)
            bitstream = self.servers[key]
            if self.ensure(key, bitstream):
                self.start(key)
            else:  # AMD's driver has forgotten a function without image
                assert not bitstream.name.endswith(bitstream.function[0])
                self.delete(key)

    def delete(self, key: Key | None = None) -> None:
        if self.servers:
            key = key or self.chance.choice(sorted(self.servers))
            if key in self.guests:
                self.stop(key)
            del self.servers[key]
            used = simulated.using(PLACES[key])
            self.life.release(
                name(key), (self.slot(key),), lambda _: False, used
            )

    def heal(self) -> None:
        """Heal the failed regions."""
        notes = self.place / "state/faulted"
        for note in notes.iterdir() if notes.exists() else ():
            note.unlink()
        self.faulted.clear()
        self.life.host.refresh()

    def step(self) -> None:
        steps = (self.spawn, self.delete, self.reboot, self.restart, self.heal)
        (step,) = self.chance.choices(steps, (10, 5, 4, 1, 1))
        step()
        claims = {claim.consumer for claim in self.life.claims()}
        assert claims == {name(key) for key in self.servers}


def name(key: Key) -> str:
    return names.region_address(*key)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[fakehost.Controller]:
    with simulated.mounted(SPEC, tmp_path / "host") as kernel:
        yield kernel


def test_random_lives(host: fakehost.Controller, tmp_path: Path) -> None:
    lives = Lives(host, tmp_path)
    try:
        for _ in range(STEPS):
            lives.step()
        while lives.servers:
            lives.delete()
    finally:
        for handle in lives.guests.values():
            os.close(handle)
    assert lives.life.claims() == ()
    assert lives.spawned > STEPS // 10
    assert lives.failed > STEPS // 50
    functions = host.functions()
    assert {functions[address]["driver"] for address in PLACES.values()} == {
        *("dfl-pci", "intel-fpga-pci", "xocl")
    }
