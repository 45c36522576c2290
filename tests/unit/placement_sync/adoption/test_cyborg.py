# SPDX-License-Identifier: Apache-2.0
"""Answers of Cyborg's API.

They are of cyborg-api 17.0.0 with rows in its database, shortened by links
and times.
"""

from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.inventory.adoption import records
from nova_accel.model import providers
from placement_sync.adoption import cyborg
from placement_sync.client import rest
from tests.unit.nova_accel.inventory.adoption import pci_clouds

ADDRESS = pci_clouds.build_card(0).address
PROVIDER, FREE = (f"22222222-2222-4222-8222-22222222222{n}" for n in "12")
ARQ: dict[str, Any] = {
    "uuid": "10efe63d-dfea-4a37-ad94-4116fba50986",
    "state": "Bound",
    "device_profile_name": "name",
    "device_profile_group_id": 0,
    "hostname": "host1",
    "device_rp_uuid": PROVIDER,
    "instance_uuid": "33333333-3333-4333-8333-333333333333",
    "project_id": None,
    "attach_handle_type": "PCI",
    "attach_handle_uuid": "10efe63d-dfea-4a37-ad94-4116fba50987",
    "attach_handle_info": {
        "domain": "0000",
        "bus": "3b",
        "device": "00",
        "function": "0",
    },
}
DEPLOYABLE: dict[str, Any] = {
    "uuid": "10efe63d-dfea-4a37-ad94-4116fba5098a",
    "parent_id": None,
    "root_id": 0,
    "name": "host1_0000:3b:00.0",
    "num_accelerators": 4,
    "device_id": 1,
    "attributes_list": "[]",
    "rp_uuid": PROVIDER,
    "driver_name": "NVIDIA",
    "bitstream_id": None,
}


class _Client(rest.RestClient):
    def __init__(self, *arqs: dict[str, Any]) -> None:
        free = DEPLOYABLE | {"rp_uuid": FREE}
        unreported = DEPLOYABLE | {"rp_uuid": None}
        self._bodies = {
            "/accelerator_requests": {"arqs": list(arqs)},
            "/deployables": {"deployables": [DEPLOYABLE, free, unreported]},
        }

    def fetch(self, path: str) -> Any:
        return self._bodies[path]


def read(*arqs: dict[str, Any]) -> cyborg.CyborgHost:
    return cyborg.read(_Client(*arqs), frozenset({"host1", "host1.example"}))


def test_a_bound_request_of_the_host_is_read() -> None:
    host = read(
        ARQ,
        ARQ | {"hostname": "host2"},
        ARQ | {"state": "BindFailed"},
    )
    assert host.requests == (
        records.CyborgRequest(
            uuid=ARQ["uuid"],
            server=ARQ["instance_uuid"],
            provider=PROVIDER,
            profile="name",
            address=ADDRESS,
            handle=ADDRESS,
        ),
    )
    assert host.managed == {PROVIDER, FREE}


def test_an_mdev_has_the_uuid_of_its_handle() -> None:
    (request,) = read(ARQ | {"attach_handle_type": "MDEV"}).requests
    assert request.address == ADDRESS
    assert request.handle == ARQ["attach_handle_uuid"]


@pytest.mark.parametrize(
    "changes",
    [
        {"attach_handle_info": {}},
        {"attach_handle_info": ARQ["attach_handle_info"] | {"bus": "../x"}},
        {"attach_handle_info": ARQ["attach_handle_info"] | {"function": "9"}},
    ],
)
def test_an_answer_of_another_form_is_an_error(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(errors.ServiceError):
        read(ARQ | changes)


@pytest.mark.parametrize(
    ("uuid", "name", "address"),
    [
        (PROVIDER, "any name", ADDRESS),
        (FREE, f"host1_{ADDRESS.upper()}", ADDRESS),
        (FREE, "host1_0000:99:00.0", None),
        (FREE, "card of host1", ""),
        ("another", f"host1_{ADDRESS}", None),
    ],
)
def test_the_card_of_a_provider(
    uuid: str, name: str, address: str | None
) -> None:
    provider = providers.Provider(uuid=uuid, name=name)
    state = model.HostState(devices=(pci_clouds.build_card(0),))
    assert read(ARQ).find_address(provider, state) == address
