# SPDX-License-Identifier: Apache-2.0
"""A driver of an invented card, and drivers that break one rule."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from nova_accel import conformance, errors, model
from nova_accel.config import policy
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import actions
from tests.hosts import build

GPU, OTHER = "0000:41:00.0", "0000:42:00.0"
SLOTS = "CUSTOM_WIDGET"
HOST = {
    "functions": [
        {
            "address": address,
            "id": "f00d:0001",
            "class": "120000",
            "group": group,
            "numa": 0,
            "attributes": {"widget/mode": "on"},
        }
        for group, address in enumerate((GPU, OTHER))
    ]
}


class Sound:
    """A driver that keeps every rule; broken drivers derive from it."""

    name = "widget"

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        for function in card.functions():
            address = str(function.address)
            if address in taken or function.vendor != "f00d":
                continue
            try:
                mode = card.attribute(address, "widget/mode")
            except errors.UnreadableError as error:
                mode = "off"
                yield model.Problem(
                    where=address, reason=str(error), address=address
                )
            device = self.device(address)
            if mode == "off":
                device = dataclasses.replace(device, profiles=())
            yield device

    def device(self, address: str) -> model.Device:
        return model.Device(
            address=address,
            plugin="widget",
            technology="vf",
            vendor="acme",
            model="widget",
            resource_class=SLOTS,
            counters={SLOTS: 1},
            slots=(address,),
            vendor_id="f00d",
            product_id="0001",
            profiles=(
                model.Profile(
                    name="whole",
                    trait="CUSTOM_ACCELERATOR_WIDGET",
                    charges={SLOTS: 1},
                    available=1,
                ),
            ),
        )

    def plan_prepare(self, claim: model.Claim) -> Sequence[actions.Action]:
        return ()

    def plan_release(self, claim: model.Claim) -> Sequence[actions.Action]:
        return ()

    def plan_arrange(
        self, host: host_reader.HostReader, rules: policy.DeviceRules
    ) -> Sequence[actions.Action]:
        host.functions()
        return ()


def check(driver: object, root: pathlib.Path) -> tuple[str, ...]:
    build.build(HOST, root)
    findings = conformance.check_driver(
        driver, fs.DiskSource(root), name="widget"
    )
    return tuple(map(str, findings))


def broken(**methods: Any) -> object:
    return type("Broken", (Sound,), methods)()


def changed(**fields: Any) -> object:
    """Return a driver whose devices have other fields."""

    def device(self: Sound, address: str) -> model.Device:
        return dataclasses.replace(Sound.device(self, address), **fields)

    return broken(device=device)


def changed_profile(**fields: Any) -> object:
    def device(self: Sound, address: str) -> model.Device:
        sound = Sound.device(self, address)
        profile = dataclasses.replace(sound.profiles[0], **fields)
        return dataclasses.replace(sound, profiles=(profile,))

    return broken(device=device)
