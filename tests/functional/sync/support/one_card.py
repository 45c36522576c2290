# SPDX-License-Identifier: Apache-2.0
"""One card of one host, created in Placement as a service does."""

import uuid
from typing import Any

from nova_accel.model import names, providers
from placement_sync.client import calls
from tests.functional.sync.support import servers

ROOT = str(uuid.UUID(int=1))
CARD = names.provider_uuid(ROOT, "0000:41:00.0")
CARD_NAME = names.provider_name("host", "0000:41:00.0")
FOREIGN = str(uuid.UUID(int=9))
TRAIT = "CUSTOM_VGPU_NVIDIA_A40_8Q"
CLASS = names.GPU_MEMORY_CLASS
MEMORY = providers.Inventory(total=48, max_unit=48)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def add(host: servers.Server, own: str, name: str, parent: str = "") -> None:
    body = {"uuid": own, "name": name}
    if parent:
        body["parent_provider_uuid"] = parent
    host.call("POST", "/resource_providers", body)


def generation(host: servers.Server, own: str) -> int:
    provider: Any = host.call("GET", f"/resource_providers/{own}")
    return int(provider["generation"])


def put(host: servers.Server, own: str, part: str, value: Any) -> None:
    """Write a part of a provider, as an operator does."""
    host.call(
        "PUT",
        f"/resource_providers/{own}/{part}",
        {
            part: value,
            "resource_provider_generation": generation(host, own),
        },
    )


def allocate(
    host: servers.Server, own: str, amount: int, of: str = CLASS
) -> str:
    """Allocate an amount of a provider to a new server."""
    consumer = str(uuid.uuid4())
    host.call(
        "PUT",
        f"/allocations/{consumer}",
        {
            "allocations": {own: {"resources": {of: amount}}},
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
            "project_id": "project",
            "user_id": "user",
        },
    )
    return consumer


CREATE: list[calls.Call] = [
    calls.CreateClass(name=CLASS),
    calls.CreateTrait(name=names.OWNER_TRAIT),
    calls.CreateTrait(name=TRAIT),
    calls.CreateProvider(uuid=CARD, name=CARD_NAME, parent=ROOT),
    calls.SetInventories(
        uuid=CARD, name=CARD_NAME, inventories={CLASS: MEMORY}
    ),
    calls.ChangeTraits(
        uuid=CARD,
        name=CARD_NAME,
        added=frozenset({names.OWNER_TRAIT, TRAIT}),
    ),
]


def reads(host: servers.Server) -> int:
    requests = host.clear()
    assert not [each for each in requests if each.is_write]
    return len(requests)


def rename(host: servers.Server) -> None:
    """Give the card another name and parent."""
    host.call(
        "PUT",
        f"/resource_providers/{CARD}",
        {"name": "odd", "parent_provider_uuid": FOREIGN},
    )
