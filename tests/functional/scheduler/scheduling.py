# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler over a real Placement, for tests of the filter.

Real components: Placement (conftest.py), Nova's report client,
SchedulerManager, HostManager with its filter handler, and the claims. Nova's
database, which would only list hosts, and its notifications are replaced.
"""

import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fixtures
import pytest
from keystoneauth1 import adapter, session, token_endpoint
from nova import conf, context, exception, objects
from nova.scheduler import host_manager, manager, request_filter
from nova.virt import hardware
from oslo_config import fixture as config_fixture

from nova_accel import model
from nova_accel.geometry import occupancy
from nova_accel.model import names
from placement_sync.client import nova_client
from tests.support.scheduler import scheduled

objects.register_all()
VERSION = {"OpenStack-API-Version": f"placement {nova_client.MICROVERSION}"}
PROFILE = "CUSTOM_MDEV_MTTY_2"
CLASS = "filters.accelerator_filter.AcceleratorFilter"


def flavor_specs(amount: int = 1, profile: str = PROFILE) -> dict[str, str]:
    """Return extra specs that request mdevs of a profile."""
    return {
        "resources_A:CUSTOM_MDEV": str(amount),
        "trait_A:" + profile: "required",
    }


class Cloud:
    """Hosts as resource providers of a real Placement, and its client.

    ``read_paths`` are the paths that Nova and the filter read; paths that
    contain ``broken`` get no answer. ``cells`` are the hosts' NUMA
    topologies by name.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.hosts: dict[str, str] = {}
        self.read_paths: list[str] = []
        self.broken = ""
        self.cells: dict[str, Any] = {}
        self.client = adapter.Adapter(
            session.Session(auth=token_endpoint.Token(endpoint, "admin")),
            endpoint_override=endpoint,
            raise_exc=False,
            service_type="placement",
        )

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(path, method, json=body, headers=VERSION)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    def add_host(self, name: str, **cards: int) -> tuple[str, dict[str, str]]:
        """Add a host; ``cards`` are the numbers of their mdev slots."""
        root = self._provider(name, None, {"VCPU": 64, "MEMORY_MB": 65536})
        self.hosts[root] = name
        return root, {
            card: self._provider(
                f"{name}_accel_{card}",
                root,
                {names.MDEV_CLASS: slots},
                names.OWNER_TRAIT,
                PROFILE,
            )
            for card, slots in cards.items()
        }

    def add_card(
        self,
        host: str,
        address: str,
        *traits: str,
        gpu: str = "L40S",
        layout: model.Layout = model.Layout.MIXED,
    ) -> str:
        """Add a GPU to a host; return its provider."""
        (root,) = (r for r, name in self.hosts.items() if name == host)
        return self._provider(
            names.provider_name(host, address),
            root,
            scheduled.capacity(gpu, layout),
            names.OWNER_TRAIT,
            names.layout_trait(layout.value),
            *scheduled.offers(gpu, layout),
            *traits,
        )

    def _provider(
        self,
        name: str,
        parent: str | None,
        inventories: Mapping[str, int],
        *traits: str,
    ) -> str:
        own = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.call(
            "POST",
            "/resource_providers",
            {"name": name, "uuid": own, "parent_provider_uuid": parent},
        )
        for custom_name in (*inventories, *traits):
            if custom_name.startswith("CUSTOM_"):
                kind = (
                    "traits" if custom_name in traits else "resource_classes"
                )
                self.call("PUT", f"/{kind}/{custom_name}")
        self.call(
            "PUT",
            f"/resource_providers/{own}/inventories",
            {
                "inventories": {
                    c: {"total": n, "max_unit": n}
                    for c, n in inventories.items()
                },
                "resource_provider_generation": 0,
            },
        )
        self.set_traits(own, *traits)
        return own

    def set_traits(self, provider: str, *traits: str) -> None:
        path = f"/resource_providers/{provider}/traits"
        generation = self.call("GET", path)["resource_provider_generation"]
        self.call(
            "PUT",
            path,
            {
                "traits": list(traits),
                "resource_provider_generation": generation,
            },
        )

    def add_traits(self, provider: str, *traits: str) -> None:
        """Add traits to a provider."""
        for trait in traits:
            self.call("PUT", f"/traits/{trait}")
        path = f"/resource_providers/{provider}/traits"
        self.set_traits(provider, *self.call("GET", path)["traits"], *traits)

    def take(self, provider: str, amount: int) -> str:
        """Allocate mdev slots to another server, and return its uuid."""
        return self.give(provider, {names.MDEV_CLASS: amount})

    def give(self, provider: str, resources: Mapping[str, int]) -> str:
        """Allocate resources to another server, and return its uuid."""
        server = str(uuid.uuid4())
        self.call(
            "PUT",
            f"/allocations/{server}",
            {
                "allocations": {provider: {"resources": dict(resources)}},
                "consumer_generation": None,
                "project_id": "other",
                "user_id": "other",
            },
        )
        return server

    def occupy(self, provider: str, vgpu_type: str, start: int) -> str:
        """Allocate a vGPU to another server, at a place of the card.

        :returns: the uuid of the server.
        """
        profile = scheduled.trait(vgpu_type).removeprefix(names.CUSTOM)
        self.add_traits(
            provider, f"{occupancy.PLACE_PREFIX}{start}_1_{profile}"
        )
        return self.give(provider, scheduled.charges(vgpu_type))

    def list_mdevs(self, server: str) -> dict[str, int]:
        """Return the mdev slots allocated to a server, by provider."""
        allocations = self.call("GET", f"/allocations/{server}")["allocations"]
        return {
            provider: allocation["resources"][names.MDEV_CLASS]
            for provider, allocation in allocations.items()
            if names.MDEV_CLASS in allocation["resources"]
        }

    def devices_of(self, server: str) -> set[str]:
        """Return the providers below hosts in a server's allocations."""
        allocations = self.call("GET", f"/allocations/{server}")["allocations"]
        return set(allocations) - set(self.hosts)


class ListedHosts(host_manager.HostManager):
    """Nova's HostManager, with the hosts from Placement's providers."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        super().__init__()

    def refresh_cells_caches(self) -> None:
        self.cells: dict[str, object] = {}

    def _init_aggregates(self) -> None:
        pass

    def get_host_states_by_uuids(
        self, _context: object, uuids: Iterable[str], _spec: object
    ) -> Iterator[Any]:
        for root in sorted(set(uuids) & self.cloud.hosts.keys()):
            name = self.cloud.hosts[root]
            state = host_manager.HostState(name, name, str(uuid.uuid4()))
            state.uuid = root
            state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
            state.numa_topology = self.cloud.cells.get(name)
            yield state


class Scheduler(manager.SchedulerManager):
    """Nova's SchedulerManager without its service and notifications."""

    def __init__(self, cloud: Cloud) -> None:
        self.host_manager = ListedHosts(cloud)

    def _select_destinations(self, *args: Any, **kwargs: Any) -> Any:
        return self._schedule(*args, **kwargs)

    def boot(
        self,
        extra_specs: dict[str, str],
        count: int = 1,
        instances: list[str] | None = None,
        ctxt: Any = None,
    ) -> list[str]:
        """Return the servers' uuids; raises NoValidHost."""
        ctxt = ctxt or context.get_admin_context()
        servers = instances or [str(uuid.uuid4()) for _ in range(count)]
        try:
            self.select_destinations(
                ctxt,
                spec_obj=make_spec(ctxt, extra_specs, servers),
                instance_uuids=servers,
                return_objects=True,
                return_alternates=True,
            )
        except manager.messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None
        return servers


def one_host(
    cloud: Cloud, *cards: tuple[str, ...], **layout: Any
) -> dict[str, str]:
    """Add a host; return the provider of each card, by its address."""
    cloud.add_host("host1")
    return {
        address: cloud.add_card("host1", address, *traits, **layout)
        for address, *traits in cards
    }


def vgpus(*types: str, **extra_specs: str) -> dict[str, str]:
    """Return extra specs that request vGPUs, on one or several cards."""
    return {
        **scheduled.vgpus(*types, **extra_specs),
        "group_policy": "none",
    }


def refused(
    scheduler: Scheduler, log: fixtures.FakeLogger, specs: dict[str, str]
) -> str:
    """Return the reason for which the only host is refused."""
    with pytest.raises(exception.NoValidHost):
        scheduler.boot(specs)
    (line,) = re.findall(
        "AcceleratorFilter refuses host host1: (.*)", log.output
    )
    return str(line)


def make_spec(
    ctxt: object, extra_specs: dict[str, str], servers: list[str]
) -> Any:
    flavor = objects.Flavor(
        vcpus=2,
        memory_mb=64,
        root_gb=0,
        ephemeral_gb=0,
        swap=0,
        extra_specs=extra_specs,
    )
    image = objects.ImageMeta(properties=objects.ImageMetaProps())
    return objects.RequestSpec(
        ctxt,
        flavor=flavor,
        image=image,
        instance_uuid=servers[0],
        num_instances=len(servers),
        project_id="project",
        user_id="user",
        is_bfv=False,
        requested_resources=[],
        request_level_params=objects.RequestLevelParams(),
        requested_destination=None,
        scheduler_hints={},
        ignore_hosts=None,
        force_hosts=None,
        force_nodes=None,
        instance_group=None,
        # As Nova's API reads it of hw:numa_nodes and the like.
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=None,
        limits=objects.SchedulerLimits(),
    )


@pytest.fixture
def scheduler(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scheduler]:
    monkeypatch.setattr(request_filter, "ALL_REQUEST_FILTERS", [])
    with config_fixture.Config(conf.CONF) as config:
        config.config(
            group="filter_scheduler",
            available_filters=["nova.scheduler.filters.all_filters", CLASS],
            enabled_filters=["ComputeCapabilitiesFilter", "AcceleratorFilter"],
            weight_classes=["nova.scheduler.weights.ram.RAMWeigher"],
            track_instance_changes=False,
        )
        yield Scheduler(cloud)


@pytest.fixture
def log() -> Iterator[fixtures.FakeLogger]:
    """Return the log from INFO on."""
    with fixtures.FakeLogger(level=logging.INFO) as logger:
        yield logger
