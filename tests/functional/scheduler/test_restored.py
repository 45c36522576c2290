# SPDX-License-Identifier: Apache-2.0
"""Restored candidates of a host have passed Nova's filters."""

import uuid
from typing import Any

import pytest
from nova import conf, context, objects
from nova.pci import stats
from nova.scheduler import request_filter
from oslo_config import fixture as config_fixture

from tests.functional.scheduler.scheduling import (
    CLASS,
    Cloud,
    ListedHosts,
    Scheduler,
    make_spec,
    one_host,
    vgpus,
)
from tests.functional.scheduler.test_numa import ONE_NODE, A, B, node, topology

NIC = "CUSTOM_PCI_8086_1572"


@pytest.mark.parametrize("swap", [False, True])
def test_each_server_gets_a_card_of_its_node_and_a_nic(
    cloud: Cloud, monkeypatch: Any, swap: bool
) -> None:
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    cards = one_host(cloud, (A, node(0)), (B, node(1)))
    cloud.cells["host1"] = topology()
    (root,) = cloud.hosts
    nics = [
        cloud._provider(f"host1_0000:0{n}:00.0", root, {NIC: 1})
        for n in (1, 2)
    ]
    if swap:
        nics.reverse()
    listed = ListedHosts.get_host_states_by_uuids

    def states(self: Any, *args: Any) -> Any:
        for state in listed(self, *args):
            state.pci_stats = stats.PciDeviceStats(
                state.numa_topology,
                objects.PciDevicePoolList(
                    objects=[
                        objects.PciDevicePool(
                            product_id="1572",
                            vendor_id="8086",
                            numa_node=None,
                            count=1,
                            tags={"dev_type": "type-PCI", "rp_uuid": nic},
                        )
                        for nic in nics
                    ]
                ),
            )
            yield state

    monkeypatch.setattr(ListedHosts, "get_host_states_by_uuids", states)
    with config_fixture.Config(conf.CONF) as config:
        config.config(
            group="filter_scheduler",
            available_filters=["nova.scheduler.filters.all_filters", CLASS],
            enabled_filters=[
                "PciPassthroughFilter",
                "NUMATopologyFilter",
                "AcceleratorFilter",
            ],
            weight_classes=["nova.scheduler.weights.ram.RAMWeigher"],
            track_instance_changes=False,
        )
        scheduler = Scheduler(cloud)
        ctxt = context.get_admin_context()
        servers = [str(uuid.uuid4()) for _ in range(2)]
        spec = make_spec(
            ctxt, vgpus("L40S-48Q", numa_policy="required") | ONE_NODE, servers
        )
        req = str(uuid.uuid4())
        spec.pci_requests = objects.InstancePCIRequests(
            requests=[
                objects.InstancePCIRequest(
                    count=1,
                    request_id=req,
                    alias_name="nic",
                    numa_policy="preferred",
                    spec=[{"vendor_id": "8086", "product_id": "1572"}],
                )
            ]
        )
        spec.requested_resources = [
            objects.RequestGroup(
                requester_id=f"{req}-0",
                resources={NIC: 1},
                use_same_provider=True,
            )
        ]
        scheduler.select_destinations(
            ctxt,
            spec_obj=spec,
            instance_uuids=servers,
            return_objects=True,
            return_alternates=True,
        )
    used = [cloud.devices_of(s) for s in servers]
    assert used[0] | used[1] == {*cards.values(), *nics}
