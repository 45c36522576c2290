# SPDX-License-Identifier: Apache-2.0
"""Tests of vGPUs of Nova's developers, unmodified, with our driver.

``test_vgpu`` of whitebox-tempest-plugin is written for Nova's own vGPUs; its
flavors ask for ``resources:VGPU=1``.
"""

import contextlib
import json
import pathlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import openstack
import pytest

from tests.e2e.support.site import SERVER_SECONDS, Site
from tests.e2e.tempest import card_hosts, guest_image, suite
from tests.e2e.tempest.card_hosts import CardHost
from tests.e2e.tempest.compute_ssh import ComputeSsh
from tests.e2e.tempest.network import NAME, GuestsNetwork
from tests.lab.cloud import settings
from tests.lab.cloud.cloud import write_distribution

pytestmark = [pytest.mark.lab, pytest.mark.long]
#: The second one is missing in the requirements of the first.
_PLUGINS = ("whitebox-tempest-plugin==0.1.0", "six")
_MODULE = "whitebox_tempest_plugin.api.compute.test_vgpu"
_UNSKIP = "[tempest.test_plugins]\nlab_unskip = lab_unskip:Unskip\n"
_OWN_PLUGIN = pathlib.Path(__file__).parent / "plugin"
_EVACUATION = "VGPUServerEvacuation"
#: Tests by their classes.
CLASSES = {
    "VGPUSmoke": 1,
    "VGPUColdMigration": 2,
    "VGPUResizeInstance": 2,
    "VGPUMultiTypes": 1,
    _EVACUATION: 1,
}
#: Of the first request that names the destination of a cold migration.
_MIGRATE_TO_HOST = "2.56"
_PAUSE_S = 1.0


class Whitebox:
    """The suite, and what it is configured with."""

    def __init__(
        self, lab: Site, hosts: Sequence[CardHost], ssh: ComputeSsh
    ) -> None:
        self._lab, self._hosts, self._ssh = lab, hosts, ssh
        self._tempest = suite.Tempest(lab, "whitebox", _PLUGINS)
        self._tempest.install()
        self._image = guest_image.upload(lab)
        self._flavor, self._other = (
            lab.flavor(name).id for name in ("plain", "other")
        )

    def run(self, workspace: pathlib.Path, name: str) -> suite.Results:
        """Run a class of the module."""
        site = workspace / "site"
        write_distribution(site, "lab-unskip", _UNSKIP)
        return self._tempest.run(
            workspace / "tempest",
            rf"{_MODULE}\.{name}\.",
            self._flavor,
            self._other,
            options=self._configuration(workspace),
            path=f"{_OWN_PLUGIN}:{site}",
        )

    def _configuration(self, workspace: pathlib.Path) -> settings.Ini:
        nodes = workspace / "nodes.yaml"
        nodes.write_text(json.dumps(self._nodes()))
        addresses = {h.name: self._ssh.address(h) for h in self._hosts}
        seconds = str(int(SERVER_SECONDS))
        return {
            "service_available": {"neutron": "True"},
            "compute": {
                "image_ref": self._image,
                "image_ref_alt": self._image,
                "min_compute_nodes": str(len(self._hosts)),
                "fixed_network_name": NAME,
                "min_microversion": _MIGRATE_TO_HOST,
            },
            "compute-feature-enabled": {
                "cold_migration": "True",
                "resize": "True",
                "console_output": "True",
                "vgpu_cold_migration_supported": "True",
            },
            "validation": {
                "run_validation": "True",
                "connect_method": "fixed",
                "network_for_ssh": NAME,
                "ssh_timeout": seconds,
            },
            # Its VGPUSmoke filters by trees of providers without saying so.
            "placement": {"min_microversion": "1.14"},
            "whitebox": {
                "nodes_yaml": str(nodes),
                "ctlplane_ssh_username": "root",
                "ctlplane_ssh_private_key_path": str(self._ssh.key),
                "ctlplane_addresses": _mapping(addresses),
            },
            "whitebox-hardware": {
                "vgpu_vendor_id": card_hosts.VENDOR,
                "vgpu_type_mapping": _mapping(card_hosts.TRAITS),
            },
        }

    def _nodes(self) -> dict[str, Any]:
        commands = {
            f"{action}_command": self._ssh.command(action)
            for action in ("start", "stop")
        }
        services = {"libvirt": {}, "nova-compute": commands}
        return {host.name: {"services": services} for host in self._hosts}


def _mapping(values: dict[str, str]) -> str:
    return ",".join(f"{key}:{value}" for key, value in values.items())


@contextlib.contextmanager
def starting_evacuated(lab: Site) -> Iterator[None]:
    """Start servers that are stopped.

    Nova leaves evacuated servers so since the microversion that the test
    asks for, and the test logs in to the guest.
    """
    is_over = threading.Event()

    def start_stopped() -> None:
        while not is_over.wait(_PAUSE_S):
            query = {"all_projects": True, "status": "SHUTOFF"}
            for server in lab.api.compute.servers(**query):
                with contextlib.suppress(openstack.exceptions.HttpException):
                    lab.api.compute.start_server(server)

    thread = threading.Thread(target=start_stopped)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.fixture(scope="module")
def whitebox(lab: Site) -> Iterator[Whitebox]:
    lab.clean()
    network = GuestsNetwork(lab)
    network.install()
    with network.running(), card_hosts.running(lab) as hosts:
        for host in hosts:
            network.connect(host)
        overlays = {
            h.number: card_hosts.overlay_path(lab, h.number) for h in hosts
        }
        ssh = ComputeSsh(lab, hosts, overlays)
        with ssh.running():
            yield Whitebox(lab, hosts, ssh)
        lab.clean()


@pytest.mark.parametrize("name", CLASSES)
def test_class(
    lab: Site, whitebox: Whitebox, tmp_path: pathlib.Path, name: str
) -> None:
    with contextlib.ExitStack() as stack:
        if name == _EVACUATION:
            stack.enter_context(starting_evacuated(lab))
        results = whitebox.run(tmp_path, name)
    print(results.output)
    assert not results.failed, results.output[-20_000:]
    assert len(results.passed) == CLASSES[name], results.output
    assert not results.skipped
