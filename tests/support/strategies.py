# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for the library's model classes.

Drawn values are well formed, with few addresses, profiles and slots, so
that conflicts are frequent.
"""

import dataclasses

from hypothesis import strategies as st

from nova_accel import model
from nova_accel.model import flavors, names, providers

ROOT_UUID = "1f2e3d4c-0000-4000-8000-000000000001"
ROOT = providers.ProviderRoot(name="compute-1", uuid=ROOT_UUID)
OWNED = frozenset({names.OWNER_TRAIT, names.NOVA_OWNER_TRAIT})

# The only profile of a whole function.
WHOLE = "whole"

pci_addresses = st.builds(
    "{:04x}:{:02x}:{:02x}.{:x}".format,
    st.sampled_from([0, 1, 0x10000]),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)
uuids = st.uuids().map(str)
profile_names = st.sampled_from(["P-1", "P-2", "P-4"])
operator_traits = st.frozensets(
    st.sampled_from(["CUSTOM_RACK_7", "CUSTOM_OPERATOR", "HW_GPU_API_VULKAN"]),
    max_size=2,
)


def profile_trait(name: str) -> str:
    """Return the trait that the profiles drawn here have."""
    return names.custom_name("VGPU", "TEST", name)


@st.composite
def mdev_profiles(
    draw: st.DrawFn, parents: tuple[str, ...], memory: int
) -> tuple[model.Profile, ...]:
    """Draw profiles that charge a slot, and memory if the card has some."""
    drawn = draw(st.lists(profile_names, min_size=1, max_size=3, unique=True))
    return tuple(
        model.Profile(
            name=name,
            trait=profile_trait(name),
            charges={names.GPU_CLASS: 1}
            | ({names.GPU_MEMORY_CLASS: int(name[2:])} if memory else {}),
            available=draw(st.integers(0, 4)),
            handles={parent: f"test-{name[2:]}" for parent in parents},
            device_api="vfio-pci",
        )
        for name in drawn
    )


@st.composite
def mdev_devices(draw: st.DrawFn, address: str | None = None) -> model.Device:
    """Draw a card that is an mdev parent, or whose VFs are."""
    where = address or draw(pci_addresses)
    count = draw(st.integers(1, 4))
    on_vfs = draw(st.booleans())
    slots = (
        tuple(f"{where[:-1]}{n}" for n in range(1, count + 1))
        if on_vfs
        else names.slot_names(count)
    )
    memory = draw(st.sampled_from([0, 4, 8]))
    parents = slots if on_vfs else (where,)
    profiles = draw(mdev_profiles(parents, memory))
    provider = names.provider_uuid(ROOT_UUID, where)
    cut = draw(st.lists(st.sampled_from(slots), unique=True, max_size=count))
    foreign = draw(st.lists(uuids, max_size=1))
    handles = [(names.mdev_uuid(provider, slot), slot) for slot in cut]
    handles += [(handle, slots[0]) for handle in foreign]
    return model.Device(
        address=where,
        plugin="mdev",
        technology="mdev",
        vendor="test",
        model="Test",
        resource_class=names.GPU_CLASS,
        counters={names.GPU_CLASS: count}
        | ({names.GPU_MEMORY_CLASS: memory} if memory else {}),
        slots=slots,
        profiles=profiles,
        partitions=tuple(
            model.Partition(
                profile=draw(st.sampled_from(profiles)).name,
                parent=slot if on_vfs else where,
                handle=handle,
            )
            for handle, slot in handles
        ),
        traits=frozenset({"CUSTOM_ACCELERATOR_VENDOR_TEST"}),
    )


@st.composite
def whole_devices(draw: st.DrawFn, address: str | None = None) -> model.Device:
    """Draw a function that is passed through."""
    where = address or draw(pci_addresses)
    return model.Device(
        address=where,
        plugin="pci_passthrough",
        technology="pci",
        vendor="test",
        model="Whole",
        resource_class=names.WHOLE_GPU_CLASS,
        counters={names.WHOLE_GPU_CLASS: 1},
        slots=(where,),
        profiles=(
            model.Profile(
                name=WHOLE,
                trait="CUSTOM_GPU_TEST_WHOLE",
                charges={names.WHOLE_GPU_CLASS: 1},
                available=1,
            ),
        ),
    )


@st.composite
def hosts(draw: st.DrawFn, max_devices: int = 3) -> model.HostState:
    """Draw a host with some devices at different addresses."""
    addresses = draw(
        st.lists(pci_addresses, max_size=max_devices, unique=True)
    )
    # Each bus and slot once: only the VFs of a PF share them.
    apart = {address[:-1]: address for address in addresses}.values()
    return model.HostState(
        devices=tuple(
            draw(st.one_of(mdev_devices(a), whole_devices(a))) for a in apart
        )
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClaimInput:
    """A host, the groups of a flavor, and the slots that Nova assigned."""

    host: model.HostState
    groups: tuple[flavors.RequestGroup, ...]
    slots: tuple[model.Slot, ...]


def slots_of(device: model.Device) -> tuple[model.Slot, ...]:
    """Return all slots of a device, as Nova assigns them."""
    provider = names.provider_uuid(ROOT_UUID, device.address)
    return tuple(
        model.Slot(
            provider=provider,
            resource_class=device.resource_class,
            identifier=identifier,
        )
        for identifier in device.slots
    )


def group(
    suffix: str, device: model.Device, profile: model.Profile, count: int = 1
) -> flavors.RequestGroup:
    """Return a group that requests a number of a device's profile."""
    return flavors.RequestGroup(
        suffix=suffix,
        resources={
            name: amount * count for name, amount in profile.charges.items()
        },
        required=frozenset({profile.trait}),
    )


@st.composite
def claim_inputs(draw: st.DrawFn) -> ClaimInput:
    """Draw groups and exactly the slots that serve them.

    The devices may lack capacity for them.
    """
    host = draw(hosts())
    groups: list[flavors.RequestGroup] = []
    taken: list[model.Slot] = []
    for device in host.devices:
        free = list(slots_of(device))
        for _ in range(draw(st.integers(0, 2))):
            count = draw(st.integers(1, 2))
            if count > len(free):
                break
            profile = draw(st.sampled_from(device.profiles))
            groups.append(group(f"G{len(groups)}", device, profile, count))
            taken += [free.pop() for _ in range(count)]
    return ClaimInput(
        host=host,
        groups=tuple(draw(st.permutations(groups))),
        slots=tuple(draw(st.permutations(taken))),
    )


def roomy(host: model.HostState) -> model.HostState:
    """Return the host without partitions, with capacity for all slots."""
    return dataclasses.replace(
        host,
        devices=tuple(_empty(device) for device in host.devices),
    )


def _empty(device: model.Device) -> model.Device:
    room = len(device.slots)
    return dataclasses.replace(
        device,
        partitions=(),
        counters=dict.fromkeys(device.counters, 100),
        profiles=tuple(
            dataclasses.replace(profile, available=room)
            for profile in device.profiles
        ),
    )


def card(address: str, *available: int, cut: int = 0) -> model.Device:
    """Return a card with profiles P-1, P-2, … and four slots."""
    provider = names.provider_uuid(ROOT_UUID, address)
    slots = names.slot_names(4)
    return model.Device(
        address=address,
        plugin="mdev",
        technology="mdev",
        vendor="test",
        model="Test",
        resource_class="VGPU",
        counters={"VGPU": 4},
        slots=slots,
        profiles=tuple(
            model.Profile(
                name=f"P-{n}",
                trait=profile_trait(f"P-{n}"),
                charges={"VGPU": 1},
                available=count,
                handles={address: f"test-{n}"},
            )
            for n, count in enumerate(available, 1)
        ),
        partitions=tuple(
            model.Partition(
                profile="P-1",
                parent=address,
                handle=names.mdev_uuid(provider, slot),
            )
            for slot in slots[:cut]
        ),
    )


# -- provider trees --------------------------------------------------------

_CLASSES = ["VGPU", "PGPU", "CUSTOM_GPU_MEMORY_MB", "CUSTOM_MDEV"]
_OUR_TRAITS = [
    profile_trait("P-1"),
    profile_trait("P-2"),
    "CUSTOM_ACCELERATOR_NUMA_0",
    names.MISSING_TRAIT,
]


@st.composite
def inventories(draw: st.DrawFn) -> providers.Inventory:
    """Draw an inventory record as this library writes it."""
    total = draw(st.integers(1, 8))
    return providers.Inventory(total=total, max_unit=total).with_own_reserved(
        draw(st.integers(0, total))
    )


@st.composite
def nodes(
    draw: st.DrawFn,
    address: str,
    parent: str = ROOT_UUID,
    extra: st.SearchStrategy[frozenset[str]] | None = None,
) -> providers.ProviderNode:
    """Draw the provider of an address; ``extra`` draws foreign traits."""
    return providers.ProviderNode(
        name=names.provider_name(ROOT.name, address),
        uuid=names.provider_uuid(ROOT_UUID, address),
        parent=parent,
        inventories=draw(
            st.dictionaries(
                st.sampled_from(_CLASSES), inventories(), max_size=2
            )
        ),
        traits=OWNED
        | draw(st.frozensets(st.sampled_from(_OUR_TRAITS), max_size=3))
        | (draw(extra) if extra is not None else frozenset()),
    )


ADDRESSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x3B, 0x41, 0x5E, 0xAF))
# Like the region of an FPGA card: always below its card's provider.
NESTED = {ADDRESSES[2]: ADDRESSES[0]}


@st.composite
def trees(
    draw: st.DrawFn,
    extra: st.SearchStrategy[frozenset[str]] | None = None,
) -> providers.ProviderTree:
    """Draw a tree over few addresses, of which one nests in another."""
    drawn = draw(st.sets(st.sampled_from(ADDRESSES)))
    drawn_nodes = []
    for address in sorted(drawn):
        above = NESTED.get(address)
        if above is None:
            drawn_nodes.append(draw(nodes(address, ROOT_UUID, extra)))
        elif above in drawn:
            parent = names.provider_uuid(ROOT_UUID, above)
            drawn_nodes.append(draw(nodes(address, parent, extra)))
    return providers.ProviderTree(
        root=ROOT, nodes=tuple(sorted(drawn_nodes, key=lambda n: n.name))
    )
