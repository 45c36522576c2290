# SPDX-License-Identifier: Apache-2.0
"""Trees of two hosts are compared by their clusters."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel.model import flavors
from tests.support import examples
from tests.unit.virt_hooks.guest.topology import host_trees
from tests.unit.virt_hooks.guest.topology.test_picture import (
    ALONE,
    GPU,
    NIC,
    as_defined,
    guests,
    mirror,
)
from virt_hooks.guest.topology import clusters, host_tree, picture

HANDLES = {d.handle for d in (GPU, NIC, ALONE)}
GUEST = clusters.list_clusters(mirror(GPU, NIC, ALONE), HANDLES)


def hostdev(handle: str, bus: int) -> str:
    """Return a hostdev as libvirt has defined it."""
    source = f'uuid="{handle.upper()}"'
    if "-" not in handle:
        source = (
            f'domain="0x0000" bus="0x{handle[5:7]}"'
            f' slot="0x{handle[8:10]}" function="0x{handle[-1]}"'
        )
    return (
        f"<hostdev><source><address {source}/></source>"
        f'<address type="pci" bus="0x{bus:02x}"/></hostdev>'
    )


@given(devices=guests())
@settings(deadline=None, max_examples=examples.examples(300))
def test_a_domain_has_the_clusters_of_its_picture(
    devices: tuple[host_tree.HostDevice, ...],
) -> None:
    drawn = mirror(*devices)
    hostdevs = [hostdev(h, place.bus) for h, place in drawn.places.items()]
    text = as_defined(drawn, 4).replace(
        "</devices>", f"{''.join(hostdevs)}</devices>"
    )
    parsed = clusters.list_clusters(picture.parse(text), drawn.places.keys())
    assert parsed == clusters.list_clusters(drawn, drawn.places.keys())
    # One slot of several functions below a port is no cluster of a switch.
    assert {
        (
            "complex"
            if c.kind is clusters.ClusterKind.ROOT_COMPLEX
            else "bridge",
            c.handles,
        )
        for c in parsed
    } == host_trees.list_host_clusters(devices)


@given(devices=guests(), seed=st.integers())
@settings(deadline=None, max_examples=examples.examples(300))
def test_handles_are_paired_so_that_the_trees_are_equal(
    devices: tuple[host_tree.HostDevice, ...], seed: int
) -> None:
    """Other hosts have the same tree, and list its devices in any order."""
    drawn = mirror(*devices)
    old = sorted(drawn.places)
    shuffled = random.Random(seed).sample(old, len(old))  # noqa: S311
    names = {handle: f"{handle}-new" for handle in old}
    guest = clusters.list_clusters(drawn, drawn.places.keys())
    here = clusters.rename(guest, names)
    kinds = {handle: str(n % 2) for n, handle in enumerate(old)}
    given_pairs: dict[str, str] = {}
    for kind in ("0", "1"):
        given_pairs |= zip(
            (h for h in old if kinds[h] == kind),
            (names[h] for h in shuffled if kinds[h] == kind),
            strict=True,
        )
    pairs = clusters.pair(guest, here, given_pairs, kinds)
    assert clusters.rename(guest, pairs) == here
    assert sorted(pairs.values()) == sorted(names.values())
    assert all(
        kinds[new.removesuffix("-new")] == kinds[o] for o, new in pairs.items()
    )


def test_the_pairs_remain_without_equal_trees() -> None:
    here = clusters.list_clusters(mirror(GPU, ALONE), HANDLES)
    pairs = {handle: handle for handle in HANDLES}
    kinds = dict.fromkeys(HANDLES, "")
    assert clusters.pair(GUEST, here, pairs, kinds) == pairs


def test_a_handle_of_another_kind_is_no_substitute() -> None:
    """The switch has the small one and a large one here."""
    kinds = {GPU.handle: "4Q", NIC.handle: "4Q", ALONE.handle: "8Q"}
    here = clusters.rename(
        GUEST, {GPU.handle: "a", NIC.handle: "large", ALONE.handle: "b"}
    )
    pairs = {GPU.handle: "a", NIC.handle: "b", ALONE.handle: "large"}
    assert clusters.pair(GUEST, here, pairs, kinds) == pairs


def test_a_tree_is_sent_as_text() -> None:
    text = clusters.to_text(flavors.GuestTopology.PCIE, GUEST)
    tree = clusters.parse_text(text)
    assert tree.topology is flavors.GuestTopology.PCIE
    assert frozenset(tree.clusters) == GUEST
    assert tree.handles == HANDLES


SENT = clusters.to_text(flavors.GuestTopology.PCIE, GUEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format":1,"topology":"x","clusters":[]}',
        SENT.replace('"cell":0', '"cell":1e400'),
        SENT.replace(f'"{ALONE.handle}"', ""),
        SENT.replace('"switch"', '"\\n"'),
        SENT.replace(GPU.handle, "x" * 65),
        SENT.replace(
            f'"{GPU.handle}"', ",".join(f'"{n}"' for n in range(257))
        ),
    ],
)
def test_a_text_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="run one nova-accel on both"):
        clusters.parse_text(text)


def test_differences_are_explained() -> None:
    assert clusters.explain(GUEST, GUEST) == ()
    beside = host_tree.HostDevice(
        ("pci0000:16", "0000:16:02.0"), NIC.address, NIC.handle, (), 0
    )
    here = clusters.list_clusters(mirror(GPU, beside, ALONE), HANDLES)
    assert clusters.explain(GUEST, here) == (
        "the guest sees 0000:19:00.0 and 0000:1a:00.0 below one switch",
    )


def test_another_numa_node_is_explained() -> None:
    other = picture.mirror([ALONE], {1: 0}, 1, 5)
    assert clusters.explain(
        clusters.list_clusters(mirror(ALONE), {ALONE.handle}),
        clusters.list_clusters(other, {ALONE.handle}),
    ) == (
        "the guest sees 0000:97:00.0 below one root complex on node 1",
        "here are 0000:97:00.0 below one root complex on node 0",
    )
