# SPDX-License-Identifier: Apache-2.0
"""Real Ironic: API and conductor in one process, on SQLite.

Its nodes have no machine (``fake-hardware``). ``Ironic.inspect`` posts the
data of an inspection as the ramdisk does, in the place of a machine that
boots.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import requests

_SECONDS = 60.0
_PAUSE_S = 0.05
_HEADERS = {"X-OpenStack-Ironic-API-Version": "1.101"}
_MEMORY = {"physical_mb": 262144, "total": 262144 << 20}
_CPU = {"count": 64, "architecture": "x86_64", "model_name": "", "flags": []}
# Every interface that needs a program is off.
_CONF = """
[DEFAULT]
auth_strategy = noauth
rpc_transport = none
state_path = {place}
host = conductor
my_ip = 127.0.0.1
enabled_hardware_types = fake-hardware,redfish
enabled_inspect_interfaces = agent,redfish
enabled_boot_interfaces = fake,redfish-virtual-media
enabled_deploy_interfaces = fake,direct
enabled_management_interfaces = fake,redfish
enabled_power_interfaces = fake,redfish
enabled_network_interfaces = noop
enabled_vendor_interfaces = no-vendor
enabled_console_interfaces = no-console
enabled_raid_interfaces = no-raid
enabled_rescue_interfaces = no-rescue
enabled_bios_interfaces = no-bios
enabled_firmware_interfaces = no-firmware
tempdir = {place}
[agent]
require_tls = false
[api]
host_ip = 127.0.0.1
port = {port}
api_workers = 1
[service_catalog]
auth_type = none
endpoint_override = http://127.0.0.1:{port}
[database]
connection = sqlite:///{place}/ironic.sqlite
[conductor]
automated_clean = false
[inspector]
require_managed_boot = false
hooks = $default_hooks,accelerators,accel
[redfish]
inspection_hooks = $default_inspection_hooks,accelerators,accel
[inventory]
data_backend = database
[oslo_concurrency]
lock_path = {place}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BareMetal:
    """A node of Ironic, and the MAC address of its port."""

    uuid: str
    mac: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ironic:
    """A running Ironic."""

    url: str
    log: pathlib.Path

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to an administrator's request."""
        answer = requests.request(
            method,
            f"{self.url}/v1{path}",
            json=body,
            headers=_HEADERS,
            timeout=_SECONDS,
        )
        assert answer.ok, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def create(self, mac: str = "", **fields: Any) -> BareMetal:
        """Return a new node that can be inspected.

        :param mac: address of its port; by default one of its own.
        """
        own = uuid.uuid4()
        mac = mac or f"52:54:00:{own.bytes[:3].hex(':')}"
        node = BareMetal(uuid=str(own), mac=mac)
        body = {"uuid": node.uuid, "driver": "fake-hardware", **fields}
        self.call("POST", "/nodes", body)
        port = {"address": node.mac, "node_uuid": node.uuid}
        self.call("POST", "/ports", port)
        self.change_state(node, "manage")
        self.await_state(node, "manageable")
        return node

    def adopt(self, node: BareMetal) -> None:
        """Let a node be in use, as one that was deployed without Ironic."""
        image = {"image_source": "http://127.0.0.1/", "image_checksum": "0"}
        change = {"op": "add", "path": "/instance_info", "value": image}
        self.call("PATCH", f"/nodes/{node.uuid}", [change])
        self.change_state(node, "adopt")
        self.await_state(node, "active")

    def change_state(
        self, node: BareMetal, target: str, **arguments: Any
    ) -> None:
        path = f"/nodes/{node.uuid}/states/provision"
        self.call("PUT", path, {"target": target, **arguments})

    def await_state(
        self,
        node: BareMetal,
        state: str,
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """Wait until a node is in a state of provisioning.

        :param process: one that must run meanwhile.
        """
        until = time.monotonic() + _SECONDS
        while (present := self.show(node))["provision_state"] != state:
            reached = f"{present['provision_state']}: {present['last_error']}"
            assert not present["provision_state"].endswith("failed"), reached
            assert time.monotonic() < until, reached
            assert process is None or process.poll() is None, reached
            time.sleep(_PAUSE_S)

    def begin_inspection(self, node: BareMetal) -> None:
        """Start an inspection; the node's machine would boot now."""
        self.change_state(node, "inspect")

    def post_inspection(
        self,
        node: BareMetal,
        plugin_data: Mapping[str, Any],
        **inventory: Any,
    ) -> None:
        """Send the data of the ramdisk, with an inventory around it."""
        self.await_state(node, "inspect wait")
        interface = {"name": "eth0", "mac_address": node.mac}
        data = {
            "inventory": {
                "interfaces": [interface],
                "cpu": _CPU,
                "memory": _MEMORY,
                "disks": [],
                "boot": {"current_boot_mode": "uefi"},
                "bmc_address": None,
                **inventory,
            },
            "boot_interface": node.mac,
            "error": None,
            **plugin_data,
        }
        self.call("POST", "/continue_inspection", data)

    def inspect(
        self,
        node: BareMetal,
        plugin_data: Mapping[str, Any],
        **inventory: Any,
    ) -> None:
        """Run a whole inspection of a node."""
        self.begin_inspection(node)
        self.post_inspection(node, plugin_data, **inventory)
        self.await_state(node, "manageable")

    def show(self, node: BareMetal) -> dict[str, Any]:
        fields: dict[str, Any] = self.call("GET", f"/nodes/{node.uuid}")
        return fields

    def traits(self, node: BareMetal) -> set[str]:
        return set(self.call("GET", f"/nodes/{node.uuid}/traits")["traits"])

    def set_traits(self, node: BareMetal, *traits: str) -> None:
        """Replace all traits, as an operator does."""
        path = f"/nodes/{node.uuid}/traits"
        self.call("PUT", path, {"traits": list(traits)})


@contextlib.contextmanager
def start(place: pathlib.Path) -> Iterator[Ironic]:
    """Run Ironic with its files in an empty directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = place / "ironic.conf"
    conf.write_text(_CONF.format(place=place, port=port))
    programs = pathlib.Path(sys.executable).parent
    options = ["--config-file", str(conf)]
    log = place / "ironic.log"
    with log.open("w") as words:
        subprocess.run(  # noqa: S603
            [programs / "ironic-dbsync", *options, "create_schema"],
            check=True,
            stdout=words,
            stderr=words,
        )
        with subprocess.Popen(  # noqa: S603
            [programs / "ironic", *options],
            stdout=words,
            stderr=words,
            start_new_session=True,
        ) as running:
            try:
                ironic = Ironic(url=f"http://127.0.0.1:{port}", log=log)
                _await_driver(ironic, running)
                yield ironic
            finally:
                # Its API and its conductor would wait for each other.
                os.killpg(running.pid, signal.SIGKILL)


def _await_driver(ironic: Ironic, running: "subprocess.Popen[bytes]") -> None:
    """Wait until the API answers and the conductor has its driver."""
    until = time.monotonic() + _SECONDS
    while True:
        with contextlib.suppress(requests.ConnectionError):
            if ironic.call("GET", "/drivers")["drivers"]:
                return
        is_late = time.monotonic() > until
        assert running.poll() is None and not is_late, ironic.log.read_text()
        time.sleep(_PAUSE_S)
