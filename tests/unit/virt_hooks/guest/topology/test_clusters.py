# SPDX-License-Identifier: Apache-2.0
"""Trees of two hosts are compared by their clusters."""

import pytest
from hypothesis import given, settings

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

TREE = clusters.GuestTree(
    topology=flavors.GuestTopology.PCIE,
    clusters=clusters.list_clusters(
        mirror(GPU, NIC, ALONE), {d.handle for d in (GPU, NIC, ALONE)}
    ),
)


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
    parsed = clusters.parse_clusters(text, drawn.places.keys())
    assert parsed == clusters.list_clusters(drawn, drawn.places.keys())
    # One slot of several functions below a port is no cluster of a switch.
    assert {
        ("complex" if c.kind == "root complex" else "bridge", c.handles)
        for c in parsed
    } == host_trees.list_host_clusters(devices)


def test_a_tree_is_sent_as_text() -> None:
    assert clusters.parse_text(clusters.to_text(TREE)) == TREE
    handles = {handle: f"{handle}-new" for handle in TREE.handles}
    assert TREE.renamed(handles).handles == {*handles.values()}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"topology": "x"}'])
def test_a_text_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="run one nova-accel on both"):
        clusters.parse_text(text)


def test_differences_are_explained() -> None:
    assert clusters.explain(TREE.clusters, TREE.clusters) == ()
    beside = host_tree.HostDevice(
        ("pci0000:16", "0000:16:02.0"), NIC.address, NIC.handle, (), 0
    )
    here = clusters.list_clusters(mirror(GPU, beside, ALONE), TREE.handles)
    assert clusters.explain(TREE.clusters, here) == (
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
