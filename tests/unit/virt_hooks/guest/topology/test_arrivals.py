# SPDX-License-Identifier: Apache-2.0
"""The tree that a live migration's source sends is checked first."""

from typing import Any

import pytest

from nova_accel import errors
from tests.unit.virt_hooks.guest.topology import test_clusters
from tests.unit.virt_hooks.guest.topology.test_picture import GPU, NIC
from virt_hooks.guest import libvirt_guest
from virt_hooks.guest.topology import guest_topology

UNUSED: Any = None
LAYOUTS = guest_topology.TopologyLayouts(
    libvirt_guest.LayoutContext(
        host=UNUSED,
        hypervisor=UNUSED,
        state=UNUSED,
        get=UNUSED,
    )
)


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
    """It has three accelerators, and the server two."""
    arrival = libvirt_guest.Arrival(
        uuid="s",
        described=described,
        claims=(),
        handles={GPU.handle: "a", NIC.handle: "b"},
        kinds={GPU.handle: "", NIC.handle: ""},
        cells={},
    )
    with pytest.raises(errors.ClaimError) as refusal:
        LAYOUTS.pair_handles(arrival)
    assert str(refusal.value).endswith(
        f"its devices here are not where the guest sees them: {reason}"
    )
