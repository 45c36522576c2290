# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler over a real Placement, for tests of the filter.

Real are Placement (its own fixture, over HTTP's WSGI), Nova's report
client, SchedulerManager, HostManager with its filter handler, and the
claims. Left out are Nova's database, which here would only list hosts,
and its notifications.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import fixtures
import pytest
from keystoneauth1 import adapter, exceptions, session, token_endpoint
from nova import conf, context, objects
from nova.scheduler import host_manager, manager, request_filter
from nova.scheduler.client import report
from oslo_config import fixture as config_fixture
from placement.tests.functional.fixtures import placement
from requests import adapters

from filters import facts
from nova_accel import names

objects.register_all()
VERSION = {"OpenStack-API-Version": f"placement {facts.MICROVERSION}"}
PROFILE = "CUSTOM_MDEV_MTTY_2"
CLASS = "filters.accelerator_filter.AcceleratorFilter"


def flavor_specs(amount: int = 1, profile: str = PROFILE) -> dict[str, str]:
    """Return extra specs that ask for mdevs of a profile."""
    return {
        "resources_A:CUSTOM_MDEV": str(amount),
        "trait_A:" + profile: "required",
    }


class Cloud:
    """Hosts as resource providers of a real Placement, and its client.

    ``asked`` are the paths Nova and the filter read; those that contain
    ``broken`` get no answer.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.hosts: dict[str, str] = {}
        self.asked: list[str] = []
        self.broken = ""
        self.client = adapter.Adapter(
            session.Session(auth=token_endpoint.Token(endpoint, "admin")),
            endpoint_override=endpoint,
            raise_exc=False,
            service_type="placement",
        )

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(
            path, method, json=body, headers=VERSION
        )
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    def add_host(
        self, name: str, **cards: int
    ) -> tuple[str, dict[str, str]]:
        """Add a host whose cards have so many mdev slots each."""
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

    def _provider(
        self,
        name: str,
        parent: str | None,
        inventories: dict[str, int],
        *traits: str,
    ) -> str:
        own = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.call(
            "POST",
            "/resource_providers",
            {"name": name, "uuid": own, "parent_provider_uuid": parent},
        )
        for wanted in (*inventories, *traits):
            if wanted.startswith("CUSTOM_"):
                kind = "traits" if wanted in traits else "resource_classes"
                self.call("PUT", f"/{kind}/{wanted}")
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

    def take(self, provider: str, amount: int) -> None:
        """Allocate mdev slots to some other server."""
        self.call(
            "PUT",
            f"/allocations/{uuid.uuid4()}",
            {
                "allocations": {
                    provider: {"resources": {names.MDEV_CLASS: amount}}
                },
                "consumer_generation": None,
                "project_id": "other",
                "user_id": "other",
            },
        )

    def held(self, server: str) -> dict[str, int]:
        """Return the mdev slots a server holds, by provider."""
        found = self.call("GET", f"/allocations/{server}")["allocations"]
        return {
            provider: allocation["resources"][names.MDEV_CLASS]
            for provider, allocation in found.items()
            if names.MDEV_CLASS in allocation["resources"]
        }


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
    ) -> list[str]:
        """Return the servers' uuids; raises NoValidHost."""
        ctxt = context.get_admin_context()
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


def make_spec(
    ctxt: object, extra_specs: dict[str, str], servers: list[str]
) -> Any:
    return objects.RequestSpec(
        ctxt,
        flavor=objects.Flavor(
            vcpus=1,
            memory_mb=64,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            extra_specs=extra_specs,
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
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
        numa_topology=None,
        pci_requests=None,
        limits=objects.SchedulerLimits(),
    )


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    # wsgi-intercept knows nothing of socket options.
    monkeypatch.setattr(
        session.TCPKeepAliveAdapter,
        "init_poolmanager",
        adapters.HTTPAdapter.init_poolmanager,
    )
    with placement.PlacementFixture() as service:
        made = Cloud(service.endpoint)
        client = report.SchedulerReportClient(made.client)
        ask = client.get

        def get(url: str, *args: Any, **kwargs: Any) -> Any:
            made.asked.append(url)
            if made.broken and made.broken in url:
                raise exceptions.ConnectFailure(url)
            return ask(url, *args, **kwargs)

        monkeypatch.setattr(client, "get", get)
        monkeypatch.setattr(report, "PLACEMENTCLIENT", client)
        yield made


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
    """Collect what is logged from INFO on."""
    with fixtures.FakeLogger(level=logging.INFO) as logger:
        yield logger
