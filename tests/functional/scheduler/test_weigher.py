# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler chooses hosts by AcceleratorWeigher's weights."""

import contextlib
import copy
import socket
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import fixtures
import pytest
from nova import conf, context, objects
from oslo_config import fixture as config_fixture

from filters import (
    accelerator_weigher,
    candidate_capture,
    glance_images,
)
from filters.fit import request_mix
from nova_accel.model import names
from tests.functional.images import glances, image_requests
from tests.functional.scheduler import scheduling
from tests.functional.scheduler.scheduling import (
    Cloud,
    Scheduler,
    flavor_specs,
)
from tests.support.fpga import bitstream_files

scheduler = scheduling.scheduler
log = scheduling.log

# Hosts that Nova's own weighers prefer.
PREFERRED = {"gpu2", "empty", "first", "one"}
WEIGHERS = [
    "nova.scheduler.weights.all_weighers",
    "filters.accelerator_weigher.AcceleratorWeigher",
]
FREE = "accelerator_free_weight_multiplier"
FUNCTION = "accelerator_function_weight_multiplier"
PACKING = "accelerator_packing_weight_multiplier"
OTHER_FUNCTION = "CUSTOM_FPGA_FUNCTION_00000000000000000000000000000001"


class Hosts(scheduling.ListedHosts):
    """Hosts of which all of Nova's own weighers prefer some."""

    def get_host_states_by_uuids(
        self, context: object, uuids: Iterable[str], spec: object
    ) -> Iterator[Any]:
        for state in super().get_host_states_by_uuids(context, uuids, spec):
            is_preferred = state.host in PREFERRED
            state.vcpus_total = 64 if is_preferred else 16
            state.cpu_allocation_ratio = 1.0
            state.free_ram_mb = 65536 if is_preferred else 4096
            state.free_disk_mb = 65536 if is_preferred else 4096
            state.hypervisor_version = 2 if is_preferred else 1
            yield state


class Weighing(Scheduler):
    """A scheduler with Nova's weighers and AcceleratorWeigher."""

    def __init__(self, cloud: Cloud) -> None:
        self.host_manager = Hosts(cloud)

    @property
    def weigher(self) -> accelerator_weigher.AcceleratorWeigher:
        weigher = self.host_manager.weighers[-1]
        assert isinstance(weigher, accelerator_weigher.AcceleratorWeigher)
        return weigher

    def land(self, *args: Any, **kwargs: Any) -> list[str]:
        """Return the names of the hosts that servers were placed on."""
        cloud = self.host_manager.cloud
        hosts = []
        for server in self.boot(*args, **kwargs):
            allocations = cloud.call("GET", f"/allocations/{server}")[
                "allocations"
            ]
            (root,) = allocations.keys() & cloud.hosts.keys()
            hosts.append(cloud.hosts[root])
        return hosts


@pytest.fixture
def option(scheduler: Scheduler) -> Iterator[Any]:
    """Return a function that sets options of nova.conf."""
    with config_fixture.Config(conf.CONF) as config:
        config.config(group="filter_scheduler", weight_classes=WEIGHERS)
        accelerator_weigher.AcceleratorWeigher()
        yield lambda group="nova_accel", **values: config.config(
            group=group, **values
        )


@pytest.fixture
def weighing(cloud: Cloud, option: Any) -> Weighing:
    glance_images.shared.cache_clear()
    request_mix.shared_shares.cache_clear()
    request_mix.shared.cache_clear()
    return Weighing(cloud)


@pytest.fixture
def glance(option: Any) -> Iterator[glances.StandIn]:
    fake = glances.StandIn()
    option("glance", api_servers=[fake.url], num_retries=0)
    yield fake
    fake.close()


def add_fpgas(cloud: Cloud, name: str, *traits: str) -> dict[str, str]:
    """Add a host with an FPGA card of one region for each trait."""
    _, cards = cloud.add_host(name, **{f"r{n}": 1 for n in range(len(traits))})
    for card, trait in zip(cards.values(), traits, strict=True):
        cloud.call("PUT", f"/traits/{trait}")
        path = f"/resource_providers/{card}"
        generation = cloud.call("GET", path)["generation"]
        cloud.call(
            "PUT",
            f"{path}/inventories",
            {
                "inventories": {names.FPGA_CLASS: {"total": 1}},
                "resource_provider_generation": generation,
            },
        )
        cloud.set_traits(card, names.OWNER_TRAIT, trait)
    return cards


def fpga_specs(image: str) -> dict[str, str]:
    return {
        "resources_A:FPGA": "1",
        "accelerator:fpga_bitstream": image,
    }


FUNCTION_TRAIT = names.fpga_function_trait(bitstream_files.FUNCTION)


def user(project: str = bitstream_files.OWNER) -> context.RequestContext:
    """Return a context as the API makes it; the policy is the API's."""
    return context.RequestContext(
        user_id="someone",
        project_id=project,
        auth_token=f"{project}:member",
        service_catalog=[],
        is_admin=False,
    )


def test_servers_without_accelerators_use_hosts_without(
    cloud: Cloud, weighing: Weighing
) -> None:
    for number in range(4):
        cloud.add_host(f"gpu{number}", a=4)
    cloud.add_host("plain")

    assert weighing.land({}, count=3) == ["plain"] * 3
    assert weighing.land(flavor_specs())[0].startswith("gpu")


def test_servers_without_accelerators_spare_free_cards(
    cloud: Cloud, weighing: Weighing
) -> None:
    _, cards = cloud.add_host("full", a=4)
    cloud.add_host("empty", a=4)
    cloud.take(cards["a"], 4)

    assert weighing.land(flavor_specs()) == ["empty"]
    assert weighing.land({}, count=2) == ["full"] * 2


@pytest.mark.parametrize("specs", [{}, flavor_specs()])
def test_the_weigher_reads_nothing(
    cloud: Cloud, weighing: Weighing, specs: dict[str, str]
) -> None:
    cloud.add_host("gpu", a=4)
    cloud.add_host("plain")

    weighing.boot(specs, count=2)

    assert not [p for p in cloud.read_paths if names.OWNER_TRAIT in p]


@pytest.mark.parametrize(
    ("multiplier", "hosts"),
    [(10.0, ["used", "used"]), (-10.0, ["empty", "empty"])],
)
def test_servers_are_packed_or_spread_over_hosts(
    cloud: Cloud,
    option: Any,
    multiplier: float,
    hosts: list[str],
) -> None:
    _, used = cloud.add_host("used", a=4, b=4)
    cloud.add_host("empty", a=4, b=4)
    cloud.take(used["a"], 3)
    option(**{PACKING: multiplier})

    assert Weighing(cloud).land(flavor_specs(), count=2) == hosts


def test_servers_of_one_request_are_spread_evenly(
    cloud: Cloud, option: Any
) -> None:
    for name in ("one", "two", "three"):
        cloud.add_host(name, a=4, b=4)
    option(**{PACKING: -10.0})

    hosts = Weighing(cloud).land(flavor_specs(), count=6)

    assert sorted(hosts) == ["one", "one", "three", "three", "two", "two"]


def test_an_aggregates_multiplier_applies_to_its_hosts(
    cloud: Cloud, weighing: Weighing
) -> None:
    roots = {name: cloud.add_host(name, a=4)[0] for name in ("a", "b", "c")}
    hosts = weighing.host_manager.get_host_states_by_uuids(
        None, roots.values(), None
    )
    packed = objects.Aggregate(id=1, metadata={PACKING: "-3.5"}, hosts=["b"])
    weigher, states = weighing.weigher, {}
    for host in hosts:
        host.aggregates = [packed] if host.host == "b" else []
        states[host.host] = host
    factors = accelerator_weigher._multipliers(
        [states[name] for name in "abc"], PACKING, weigher._settings.packing
    )

    assert factors == [10.0, -3.5, 10.0]


def test_hosts_with_the_function_are_preferred(
    cloud: Cloud, weighing: Weighing, glance: glances.StandIn
) -> None:
    for name in ("first", "holder", "other"):
        add_fpgas(
            cloud,
            name,
            *[FUNCTION_TRAIT if name == "holder" else OTHER_FUNCTION] * 2,
        )
    busy = add_fpgas(cloud, "busy", FUNCTION_TRAIT, OTHER_FUNCTION)
    take_region(cloud, busy["r0"])  # Its free region has another function.
    image = image_requests.add(glance)
    landed = weighing.land(fpga_specs(image.upper()), count=2, ctxt=user())

    assert landed == ["holder", "holder"]


@pytest.mark.long
def test_the_region_with_the_function_is_allocated(
    cloud: Cloud, weighing: Weighing, glance: glances.StandIn
) -> None:
    traits = [OTHER_FUNCTION] * 5
    regions = add_fpgas(cloud, "one", *traits, FUNCTION_TRAIT)
    specs = fpga_specs(image_requests.add(glance))

    (server,) = weighing.boot(specs, ctxt=user())

    allocations = cloud.call("GET", f"/allocations/{server}")["allocations"]
    assert regions["r5"] in allocations


def take_region(cloud: Cloud, region: str) -> None:
    cloud.call(
        "PUT",
        f"/allocations/{uuid.uuid4()}",
        {
            "allocations": {region: {"resources": {names.FPGA_CLASS: 1}}},
            "consumer_generation": None,
            "project_id": "other",
            "user_id": "other",
        },
    )


def test_an_image_the_user_can_t_see_prefers_no_host(
    cloud: Cloud,
    weighing: Weighing,
    glance: glances.StandIn,
    log: fixtures.FakeLogger,
) -> None:
    add_fpgas(cloud, "other", OTHER_FUNCTION)
    add_fpgas(cloud, "holder", FUNCTION_TRAIT)
    specs = fpga_specs(image_requests.add(glance))

    weighing.boot(specs, ctxt=user("stranger"))

    assert "its function is not known" in log.output
    assert "ImageNotFound" in log.output


def count_connections(listener: socket.socket) -> int:
    """Return how many connections wait to be accepted."""
    listener.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def test_a_hanging_glance_delays_no_request(
    cloud: Cloud, weighing: Weighing, option: Any
) -> None:
    """Glance's client has no timeout: waiting for it would never end."""
    for name in ("a", "b", "c", "d"):
        add_fpgas(cloud, name, FUNCTION_TRAIT)
    image = str(uuid.uuid4())
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        option(
            "glance",
            api_servers=[f"http://127.0.0.1:{port}"],
            num_retries=0,
        )
        for _ in range(3):
            weighing.boot(fpga_specs(image), ctxt=user())
        assert count_connections(deaf) == 1


def test_without_a_capture_all_hosts_weigh_the_same(
    cloud: Cloud, weighing: Weighing, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.add_host("gpu", a=4)
    cloud.add_host("plain")
    monkeypatch.setattr(candidate_capture, "find_summaries", lambda _: None)

    assert len(weighing.land({}, count=2)) == 2
    assert weighing.land(flavor_specs()) == ["gpu"]


def test_a_server_is_placed_after_an_unexpected_error(
    cloud: Cloud,
    weighing: Weighing,
    monkeypatch: pytest.MonkeyPatch,
    log: fixtures.FakeLogger,
) -> None:
    cloud.add_host("one", a=4)
    cloud.add_host("two", a=4)
    monkeypatch.setattr(weighing.weigher, "_states", None)

    assert len(weighing.boot(flavor_specs())) == 1
    assert "Weighing failed; all hosts get the same weight" in log.output


def test_multipliers_are_applied_by_novas_handler(
    cloud: Cloud, weighing: Weighing
) -> None:
    """Nova adds the weight that the weigher returned."""
    _, used = cloud.add_host("used", a=4)
    cloud.add_host("empty", a=4)
    cloud.add_host("half", a=4)
    cloud.take(used["a"], 2)
    states = list(
        weighing.host_manager.get_host_states_by_uuids(None, cloud.hosts, None)
    )
    for state in states:
        card = cloud_card(cloud, state.host)
        state.allocation_candidates = [
            {
                "allocations": {card: {"resources": {"CUSTOM_MDEV": 1}}},
                "mappings": {"_A": [card]},
            }
        ]
    cloud.take(cloud_card(cloud, "half"), 1)
    spec = scheduling.make_spec(user(), flavor_specs(), [str(uuid.uuid4())])
    handler = weighing.host_manager.weight_handler
    capture(cloud, spec)

    weighed = handler.get_weighed_objects(
        [weighing.weigher], copy.copy(states), spec
    )

    assert {host.obj.host: host.weight for host in weighed} == {
        "used": 10.0,
        "half": 2.5,
        "empty": 0.0,
    }


def capture(cloud: Cloud, spec: Any) -> None:
    """Give Placement's summaries of all hosts to the weigher."""
    path = "/allocation_candidates?resources=VCPU:1"
    answer = cloud.call("GET", path)
    candidate_capture.store(spec, answer["provider_summaries"])


def cloud_card(cloud: Cloud, host: str) -> str:
    name = f"{host}_accel_a"
    providers = cloud.call("GET", f"/resource_providers?name={name}")
    return str(providers["resource_providers"][0]["uuid"])
