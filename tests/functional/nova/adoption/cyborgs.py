# SPDX-License-Identifier: Apache-2.0
"""A Cyborg for Nova's client, and for commands over HTTP.

Its answers have the fields of those of cyborg-api 17.0 with such rows.
"""

import json
import re
import uuid as uuids
from collections.abc import Iterable, Mapping
from typing import Any

from nova.tests import fixtures as nova_fixtures

PROFILE = "gpu"
_PARTS = ("domain", "bus", "device", "function")


class Cyborg(nova_fixtures.CyborgFixture):
    """Devices with one function each, by the uuid of Cyborg's provider."""

    def __init__(self, test: Any) -> None:
        super().__init__()
        self._test = test
        self.devices: dict[str, str] = {}
        self.arqs: list[dict[str, Any]] = []
        #: Number of devices of the profile.
        self.count = 1

    def report(self, address: str) -> None:
        """Report a device to Placement."""
        name = f"host1_{address}"
        placement = self._test.placement
        root = self._test.compute_rp_uuids["host1"]
        body = {"name": name, "parent_provider_uuid": root}
        record = placement.post("/resource_providers", body, version="1.20")
        uuid = str(record.body["uuid"])
        inventories = {
            "resource_provider_generation": record.body["generation"],
            "inventories": {"PGPU": {"total": 1}},
        }
        path = f"/resource_providers/{uuid}/inventories"
        placement.put(path, inventories, version="1.20")
        self.devices[uuid] = address

    # -- Nova's client -----------------------------------------------------

    def fake_get_device_profile_list(self, dp_name: str) -> Any:
        groups = [{"resources:PGPU": 1} for _ in range(self.count)]
        return [{"name": dp_name, "uuid": PROFILE, "groups": groups}]

    def fake_create_arqs(self, dp_name: str) -> list[dict[str, Any]]:
        created: list[dict[str, Any]] = [
            {
                "uuid": str(uuids.uuid4()),
                "state": "Initial",
                "device_profile_name": dp_name,
                "device_profile_group_id": number,
                "hostname": None,
                "device_rp_uuid": None,
                "instance_uuid": None,
                "project_id": None,
                "attach_handle_type": None,
                "attach_handle_uuid": None,
                "attach_handle_info": {},
                "links": [],
            }
            for number in range(self.count)
        ]
        self.arqs += created
        return created

    def fake_create_arq_and_match_rp(
        self,
        dp_name: str,
        rg_rp_map: Mapping[str, list[str]] | None = None,
        owner: str | None = None,
    ) -> list[dict[str, Any]]:
        created = self.fake_create_arqs(dp_name)
        for arq in created:
            group = f"device_profile_{arq['device_profile_group_id']}"
            (arq["device_rp_uuid"],) = (rg_rp_map or {})[group + (owner or "")]
        return created

    def fake_bind_arqs(self, bindings: Mapping[str, Any]) -> None:
        for arq in self.arqs:
            if arq["uuid"] in bindings:
                arq.update(bindings[arq["uuid"]], state="Bound")
                self._attach(arq)

    def _attach(self, arq: dict[str, Any]) -> None:
        address = self.devices[arq["device_rp_uuid"]]
        parts = re.split("[:.]", address)
        arq["attach_handle_type"] = "PCI"
        arq["attach_handle_uuid"] = str(uuids.uuid4())
        arq["attach_handle_info"] = dict(zip(_PARTS, parts, strict=True))

    def fake_get_arqs_for_instance(
        self, instance_uuid: str, only_resolved: bool = False
    ) -> list[dict[str, Any]]:
        return [a for a in self.arqs if a["instance_uuid"] == instance_uuid]

    def fake_get_arq_by_uuid(self, uuid: str) -> Any:
        return next(arq for arq in self.arqs if arq["uuid"] == uuid)

    def fake_delete_arqs_for_instance(self, instance_uuid: str) -> None:
        self.arqs = [
            a for a in self.arqs if a["instance_uuid"] != instance_uuid
        ]

    def fake_delete_arqs_by_uuid(self, arq_uuids: Iterable[str]) -> None:
        self.arqs = [a for a in self.arqs if a["uuid"] not in arq_uuids]

    # -- its API -----------------------------------------------------------

    def answer(
        self, environment: Mapping[str, Any], start_response: Any
    ) -> list[bytes]:
        """Answer a request, as a WSGI application."""
        deployables = [
            {"uuid": uuid, "name": f"host1_{address}", "rp_uuid": uuid}
            for uuid, address in self.devices.items()
        ]
        body = {
            "/v2/accelerator_requests": {"arqs": self.arqs},
            "/v2/deployables": {"deployables": deployables},
        }[environment["PATH_INFO"]]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(body).encode()]
