# SPDX-License-Identifier: Apache-2.0
"""The tree that a live migration's source sends is checked first."""

import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.model import flavors
from tests.unit.virt_hooks.guest.topology import test_clusters
from tests.unit.virt_hooks.guest.topology.test_picture import GPU, NIC
from virt_hooks.guest import libvirt_guest
from virt_hooks.guest.topology import clusters, guest_topology

UNUSED: Any = None
EMPTY: Any = types.SimpleNamespace(state=model.HostState())
LAYOUTS = guest_topology.TopologyLayouts(
    libvirt_guest.LayoutContext(
        host=UNUSED, hypervisor=UNUSED, state=EMPTY, get=UNUSED
    )
)
HANDLES = {GPU.handle: "a", NIC.handle: "b"}


def refuse(described: str) -> str:
    """Return why a guest with two accelerators can't have a tree here."""
    arrival = libvirt_guest.Arrival(
        uuid="s",
        described=described,
        claims=(),
        handles=HANDLES,
        kinds=dict.fromkeys(HANDLES, ""),
        cells={},
    )
    with pytest.raises(errors.ClaimError) as refusal:
        LAYOUTS.pair_handles(arrival)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (
            test_clusters.SENT,
            "the source describes '0000:97:00.0', which is none of the"
            " server's accelerators: migrate again",
        ),
        (
            '{"format":2}',
            "unknown format of the source (its format is 2, and this"
            " nova-accel reads 1; use the release that wrote it): run one"
            " nova-accel on both",
        ),
    ],
)
def test_a_strange_tree_is_refused(described: str, reason: str) -> None:
    assert refuse(described).endswith(
        f"its devices here are not where the guest sees them: {reason}"
    )


@given(
    st.frozensets(
        st.builds(
            clusters.Cluster,
            kind=st.sampled_from(clusters.ClusterKind),
            handles=st.frozensets(st.sampled_from(sorted(HANDLES))),
            cell=st.none() | st.integers(-(2**63), 2**63),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_tree_of_its_accelerators_is_compared(
    tree: clusters.Clusters,
) -> None:
    """Also one that no host has."""
    text = clusters.to_text(flavors.GuestTopology.PCIE, tree)
    assert "not where the guest sees them" in refuse(text)
