# SPDX-License-Identifier: Apache-2.0
"""Random fleets: devices with holders whose units add up."""

import collections
import dataclasses

from hypothesis import strategies as st

from nova_accel.catalog import loader
from nova_accel.geometry import occupancy
from nova_accel.model import names, providers
from placement_sync.client import nova_api
from placement_sync.fleet.devices import fleet_state
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.report import fleet_report
from tests.support.placement import clouds

SIZES = {"1Q": 1024, "2Q": 2048, "4Q": 4096, "8Q": 8192}
MODEL = "A40"
MEMORY_MB = 49152
#: Of reports whose text is compared with a file.
HEADER = fleet_report.ReportHeader(
    created="2026-05-04T06:00:00+00:00", version="1.0", user="user alice"
)


def consumer(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


def server(number: int, project: str, *sizes: str) -> nova_api.Server:
    """Return a server whose flavor has a group for each size."""
    specs: dict[str, str] = {}
    for index, size in enumerate(sizes, 1):
        specs |= {
            f"resources_GPU{index}:VGPU": "1",
            f"resources_GPU{index}:{names.GPU_MEMORY_CLASS}": str(SIZES[size]),
            f"trait_GPU{index}:CUSTOM_VGPU_NVIDIA_{MODEL}_{size}": "required",
        }
    return nova_api.Server(
        uuid=consumer(number),
        name=f"vm-{number}",
        status="ACTIVE",
        project=project,
        flavor=nova_api.ServerFlavor(
            vcpus=1,
            memory_mb=1,
            root_gb=0,
            other_gb=0,
            extra_specs=specs,
            name="-".join(("gpu", *sizes)),
        ),
    )


def holding(
    device: offered_devices.OfferedDevice, number: int, *sizes: str
) -> providers.Allocation:
    memory = sum(SIZES[size] for size in sizes)
    return providers.Allocation(
        provider=device.uuid,
        consumer=consumer(number),
        amounts={"VGPU": len(sizes), names.GPU_MEMORY_CLASS: memory},
    )


def with_used(
    device: offered_devices.OfferedDevice,
    holdings: list[providers.Allocation],
) -> offered_devices.OfferedDevice:
    """Return a device with the used units of its holdings."""
    used: collections.Counter[str] = collections.Counter()
    for each in holdings:
        used.update(each.amounts)
    return dataclasses.replace(
        device, capacities=device.with_used(used).capacities
    )


@st.composite
def fleets(draw: st.DrawFn) -> fleet_state.Fleet:
    """Draw up to six cards on three hosts, in any state, with holders."""
    devices, holdings, servers = [], [], {}
    for number in range(draw(st.integers(0, 6))):
        state = draw(st.sampled_from(("", *sorted(clouds.STATE_TRAITS))))
        device = clouds.gpu(
            MODEL,
            draw(st.lists(st.sampled_from(sorted(SIZES)), unique=True)),
            *([state] if state else []),
            at=f"node{number % 3}/0000:{number:02x}:00.0",
        )
        own = []
        for index in range(draw(st.integers(0, 3))):
            sizes = draw(
                st.lists(
                    st.sampled_from(sorted(SIZES)), min_size=1, max_size=2
                )
            )
            own.append(holding(device, 10 * number + index, *sizes))
            if draw(st.booleans()):
                owner = server(
                    10 * number + index,
                    draw(st.sampled_from(("red", "blue"))),
                    *sizes[: draw(st.integers(0, 2))],
                )
                servers[owner.uuid] = owner
        devices.append(with_used(device, own))
        holdings += own
    return fleet_state.Fleet(
        cloud=offered_devices.Cloud(devices=tuple(devices)),
        holdings=tuple(holdings),
        servers=servers,
    )


def example() -> fleet_state.Fleet:
    """Return a fleet with a card in each mode and in some states."""
    catalog = loader.load()
    mig = (
        ("CUSTOM_VGPU_NVIDIA_A100_1_5C", 0),
        ("CUSTOM_VGPU_NVIDIA_A100_3_20C", 4),
    )
    cards = (
        clouds.gpu("A40", ("8Q",), at="gpu-01/0000:41:00.0"),
        clouds.gpu("A40", (), names.FAULTED_TRAIT, at="gpu-01/0000:81:00.0"),
        clouds.gpu("A40", (), names.DRAINED_TRAIT, at="gpu-02/0000:41:00.0"),
        clouds.gpu(
            "A100",
            ("2-10C",),
            *(
                f"{occupancy.PLACE_PREFIX}{start}_1_{trait.removeprefix(names.CUSTOM)}"
                for trait, start in mig
            ),
            layout="mig",
            at="gpu-03/0000:af:00.0",
        ),
    )
    equal, faulted, drained, in_mig = cards
    holdings = [
        holding(equal, 1, "8Q"),
        holding(equal, 2, "8Q"),
        holding(equal, 3, "8Q"),
        holding(faulted, 4, "4Q"),
        holding(faulted, 5, "4Q"),
        holding(drained, 6, "8Q"),
        *(
            providers.Allocation(
                provider=in_mig.uuid,
                consumer=consumer(number),
                amounts=catalog.charges(catalog.by_trait()[trait]),
            )
            for number, (trait, _) in enumerate(mig, 7)
        ),
    ]
    projects = ("render", "research", "web")
    owners = [
        server(
            number, projects[number % 3], "4Q" if number in (4, 5) else "8Q"
        )
        for number in range(1, 9)
    ]
    return fleet_state.Fleet(
        cloud=offered_devices.Cloud(
            devices=tuple(
                with_used(c, [h for h in holdings if h.provider == c.uuid])
                for c in cards
            )
        ),
        holdings=tuple(holdings),
        servers={owner.uuid: owner for owner in owners},
    )
