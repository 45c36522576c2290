# SPDX-License-Identifier: Apache-2.0
"""Host with one device in each state, its claims and its tree."""

from typing import Any

from nova_accel import model
from nova_accel.config import policy
from nova_accel.inventory import tree_builder
from nova_accel.model import names, providers
from tests.support import strategies


def card(number: int, **fields: Any) -> model.Device:
    address = f"0000:0{number}:00.0"
    return model.Device(
        address=address,
        plugin="test",
        technology="mdev",
        vendor="test",
        model="Card",
        resource_class="VGPU",
        counters={"VGPU": 4, "CUSTOM_GPU_MEMORY_MB": 400},
        slots=names.slot_names(4),
        profiles=(
            model.Profile(
                name="P-2",
                trait="CUSTOM_VGPU_TEST_P_2",
                charges={"VGPU": 1, "CUSTOM_GPU_MEMORY_MB": 200},
                available=2,
            ),
        ),
        **fields,
    )


def claim(device: str, profile: str = "P-2") -> model.Claim:
    provider = names.provider_uuid(strategies.ROOT_UUID, device)
    return model.Claim(
        consumer="server",
        provider=provider,
        device=device,
        profile=profile,
        slot="slot-0",
        parent=device,
        handle=names.mdev_uuid(provider, "slot-0"),
        technology="mdev",
    )


HOST = model.HostState(
    devices=(
        card(1),
        card(2, fault="it burns"),
        card(3, drain="for repair"),
        card(4, drain="for repair", fault="it burns"),
    ),
    problems=(model.Problem(where="0000:05:00.0", reason="EIO"),),
    unknown=frozenset({"0000:05:00.0"}),
)
CLAIMS = (claim("0000:01:00.0"), claim("0000:06:00.0"))


def tree(
    host: model.HostState, claims: tuple[model.Claim, ...] = ()
) -> providers.ProviderTree:
    return tree_builder.build_tree(
        strategies.ROOT, host, policy.DeviceRules(), claims
    )


TREE = tree(HOST, CLAIMS)
