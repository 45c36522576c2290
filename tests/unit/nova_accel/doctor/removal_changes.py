# SPDX-License-Identifier: Apache-2.0
"""Changes of a host from which the library was removed, with the results."""

import json
from collections.abc import Mapping
from typing import Any

from nova_accel.host.state import device_notes
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor.changes import (
    DIRECTORY,
    FAIL,
    NOTE,
    NOTE_FILE,
    NOVA_CONF,
    SERVER,
    STATE,
    VF,
    Case,
)

# The prepared host after a removal, and what can be left behind.
REMOVED: prepared.Change = {
    NOVA_CONF: "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n",
    STATE: None,
}
# As nova-compute and `nova-accel remove apply` write them.
CLAIMS: Mapping[str, Any] = {
    "format": 1,
    "root": {"name": "node1", "uuid": SERVER},
    "claims": [
        {
            "consumer": SERVER,
            "provider": SERVER,
            "device": prepared.GPU,
            "profile": "",
            "slot": prepared.GPU,
            "parent": "",
            "handle": prepared.GPU,
            "technology": "passthrough",
            "state": "made",
        }
    ],
    "occupied": [],
}
LEFT = {"format": 1, "address": prepared.GPU, "reason": device_notes.LEAVING}
CASES: Mapping[str, Case] = {
    "remove.claims": Case(
        FAIL,
        {prepared.at(VF, "nvidia/current_vgpu_type"): "1145"},
    ),
    "remove.functions": Case(
        FAIL,
        {
            f"{STATE}/book.json": json.dumps(CLAIMS),
            f"{STATE}/drained/{NOTE_FILE}": json.dumps(LEFT),
        },
    ),
    "remove.offered": Case(
        FAIL,
        {f"{STATE}/book.json": json.dumps({**CLAIMS, "claims": []})},
    ),
    "remove.driver": Case(
        FAIL,
        {NOVA_CONF: "[DEFAULT]\ncompute_driver = accel.AccelLibvirtDriver\n"},
    ),
    "remove.filters": Case(
        FAIL,
        {NOVA_CONF: "[filter_scheduler]\nenabled_filters = AcceleratorFilter"},
    ),
    "remove.section": Case(
        NOTE, {NOVA_CONF: "[nova_accel]\nsync_interval = 60\n"}
    ),
    "remove.units": Case(
        NOTE,
        {f"{prepared.UNITS}/placement-sync.service": "[Service]\n"},
    ),
    "remove.state": Case(NOTE, {STATE: DIRECTORY}),
}
