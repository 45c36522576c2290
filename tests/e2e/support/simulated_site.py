# SPDX-License-Identifier: Apache-2.0
"""Hosts full of cards beside the lab's own, and flavors for them.

Their devices are directory trees that placement-sync reads, as it would
read a host's own; their servers run nowhere. So a server's device is what
Placement has allocated to it.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel.model import names
from tests.e2e.support.site import Provider, Site
from tests.hosts import build, vgpu_cards
from tests.lab.cloud import simulated

L40S, T4S, PLAIN = "l40s", "t4s", "plain"
#: Four L40S whose vGPUs may have any size: two below one root port.
CARDS, NEAR, FAR, LAST = (
    "0000:43:00.0",
    "0000:44:00.0",
    "0000:83:00.0",
    "0000:93:00.0",
)
#: Two T4 of three vGPUs each.
T4, T4_B = "0000:3b:00.0", "0000:af:00.0"
FPGA = "0000:05:00.0"
#: What the FPGA's region holds on one host, and on the other.
FUNCTIONS = {
    L40S: "d8424dc4a4a3c413f89e433683f9040b",
    T4S: "56e203e9864f49a794b912284c31e02b",
}

_SWITCH = ("0000:40:01.1", "0000:41:00.0")
_SPECS: Mapping[str, tuple[str, ...]] = {
    L40S: (
        '{"address": "*", "vendor_id": "10de", "sizes": "mixed"}',
        '{"address": "*"}',
    ),
    T4S: (
        '{"address": "*", "vendor_id": "10de", "max_slots": 3}',
        '{"address": "*"}',
    ),
    PLAIN: (),
}
HOSTS = tuple(_SPECS)


def _fpga(function: str) -> build.Description:
    card, *_ = build.load("dfl-pac")["functions"]
    (port,) = (key for key in card["attributes"] if key.endswith("/afu_id"))
    attributes = {**card["attributes"], port: function}
    return {"functions": [{**card, "attributes": attributes, "group": 9}]}


def _descriptions() -> dict[str, build.Description]:
    l40s, t4 = vgpu_cards.L40S, vgpu_cards.T4
    places = (
        (CARDS, 0, (*_SWITCH, "0000:42:00.0")),
        (NEAR, 0, (*_SWITCH, "0000:42:01.0")),
        (FAR, 1, ("0000:80:01.1",)),
        (LAST, 1, ("0000:90:01.1",)),
    )
    return {
        L40S: vgpu_cards.join(
            *(
                vgpu_cards.describe(
                    l40s, address, number * 100, numa=node, below=below
                )
                for number, (address, node, below) in enumerate(places, 1)
            ),
            _fpga(FUNCTIONS[L40S]),
        ),
        T4S: vgpu_cards.join(
            vgpu_cards.describe(t4, T4, 1),
            vgpu_cards.describe(t4, T4_B, 2, numa=1),
            _fpga(FUNCTIONS[T4S]),
        ),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated hosts, and who asks for what they have."""

    lab: Site
    root: pathlib.Path
    _flavors: dict[tuple[Any, ...], Any] = dataclasses.field(
        default_factory=dict
    )

    def start(self) -> None:
        """Start the hosts, and report their cards to Placement."""
        simulated.start(self.lab.cloud, _SPECS)
        for name, description in _descriptions().items():
            build.build(description, self.root / name)
            self.sync(name)
        # On a real host only NVML reports these.
        self.add_trait(L40S, NEAR, names.nvlink_trait(FAR))
        self.add_trait(L40S, FAR, names.nvlink_trait(NEAR))

    def stop(self) -> None:
        """Take the hosts away, and all that is known of them."""
        simulated.stop(self.lab.cloud, HOSTS)
        self.delete_flavors()
        for host in HOSTS:
            devices = self.lab.providers(host)
            # A region before its card, whose name is shorter.
            for _, provider in sorted(devices.items(), reverse=True):
                self.lab.place(
                    "DELETE", f"/resource_providers/{provider.uuid}"
                )
        for service in self.lab.api.compute.services():
            if service.host in HOSTS:
                self.lab.api.compute.delete_service(service)

    def delete_flavors(self) -> None:
        """Delete the flavors that ``flavor`` has made."""
        while self._flavors:
            _, flavor = self._flavors.popitem()
            self.lab.api.compute.delete_flavor(flavor)

    def sync(self, name: str, *arguments: str) -> str:
        """Run a command for a host; return what it says."""
        words = arguments or ("run", "--once")
        conf = simulated.configuration(self.lab.cloud, name)
        state = simulated.state_dir(self.lab.cloud, name)
        return self.lab.commanded(
            "placement-sync" if words[0] == "run" else "nova-accel",
            *words,
            f"--host={name}",
            f"--root={self.root / name}",
            f"--state-dir={state}",
            f"--config-file={conf}",
        )

    def add_trait(self, host: str, address: str, *traits: str) -> None:
        """Add traits to a device's provider that no host reported."""
        provider = self.device(host, address)
        self.set_traits(provider, {*provider.traits, *traits})

    def set_traits(self, provider: Provider, traits: Iterable[str]) -> None:
        """Give a provider these traits and no others."""
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self.lab.place("PUT", f"/traits/{trait}")
        self.lab.place(
            "PUT",
            f"/resource_providers/{provider.uuid}/traits",
            {
                "traits": sorted(traits),
                "resource_provider_generation": self.lab.generation(
                    provider.uuid
                ),
            },
        )

    def device(self, host: str, address: str) -> Provider:
        """Return a device as Placement has it."""
        suffix = names.provider_name("", address).removeprefix("_accel_")
        return self.lab.providers(host)[suffix]

    def flavor(self, *arguments: str, ram: int = 64, **specs: str) -> Any:
        """Return a flavor made by our own command.

        :param arguments: what ``flavor set`` takes.
        :param ram: the server's memory in MiB.
        :param more: further extra specs, ``__`` for a colon.
        """
        key = (arguments, ram, *specs.items())
        if key not in self._flavors:
            name = f"simulated-{len(self._flavors)}"
            made = self.lab.flavor_of(ram, name, specs)
            words = ("flavor", "set", made.name, *arguments)
            self.lab.commanded("nova-accel", *words)
            self._flavors[key] = made
        return self._flavors[key]

    def places(self, server: Any) -> set[str]:
        """Return the names of the devices that are allocated to a server."""
        names_of = self.lab.provider_names()
        providers = {names_of[uuid] for uuid in self.lab.allocations(server)}
        return {name for name in providers if "_accel_" in name}


def place(host: str, address: str) -> str:
    """Return a device's name in Placement."""
    return names.provider_name(host, address)
