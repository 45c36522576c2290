# SPDX-License-Identifier: Apache-2.0
"""A network between the lab's guests and this computer, with real Neutron.

It takes the place of the lab's network service, at the same URL. Frames go
through a network card of each VM to a bridge here.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.e2e.support.site import Site
from tests.lab.cloud import settings
from tests.lab.cloud.cloud import write_distribution
from tests.lab.cloud.hosts import Host
from tests.lab.cloud.installations import CONSTRAINTS, run_uv
from tests.lab.cloud.processes import run
from tests.lab.vm import machine

VERSION = "29.0.0"
#: Name of the network, and of its physical network.
NAME = "guests"
_PREFIX = "10.0.4"
#: This computer's address on it.
OWN_ADDRESS = f"{_PREFIX}.1"
_BRIDGE = "lab-guests"
_DRIVER = (
    "[neutron.ml2.mechanism_drivers]\nguests_card = lab_neutron:GuestsCard\n"
)
#: The card gets the name that the ports are bound to (lab_neutron.CARD).
_CARD = """
. "$LAB_GUEST/lib.sh"
[ ! -e /sys/class/net/guests ] || exit 0
card=$(lab_nic 52:54:00:6c:63:) && modprobe macvtap || exit
ip link set "$card" down && ip link set "$card" name guests &&
    ip link set guests up
"""


class GuestsNetwork:
    """Neutron, and the bridge."""

    def __init__(self, lab: Site) -> None:
        self._lab = lab
        self._place = lab.layout.cache / f"neutron-{VERSION}"
        self._python = self._place / "bin/python"

    def install(self) -> None:
        """Install Neutron in an environment of its own, once."""
        complete = self._place / "complete"
        if complete.exists():
            return
        run_uv(self._lab.layout, "venv", "--clear", self._place)
        run_uv(
            self._lab.layout,
            *("pip", "install", "--python", self._python),
            *("-c", CONSTRAINTS, f"neutron=={VERSION}", "waitress"),
        )
        complete.touch()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run Neutron with one network, and the bridge."""
        cloud, layout = self._lab.cloud, self._lab.layout
        site = layout.state / "site"
        if not any(site.glob("lab_neutron*")):
            write_distribution(site, "lab-neutron", _DRIVER)
        for path in layout.databases.glob("neutron.sqlite*"):
            path.unlink()
        url = f"sqlite:///{layout.databases / 'neutron.sqlite'}"
        program = str(layout.inside / "lab_neutron.py")
        cloud.processes.call(
            "prepare-neutron", [str(self._python), program, url]
        )
        text = settings.render(self._configuration())
        (layout.etc / "neutron.conf").write_text(text)
        # A run that was killed leaves it.
        run(["ip", "link", "delete", _BRIDGE])
        _ip("link", "add", _BRIDGE, "type", "bridge")
        try:
            _ip("address", "add", f"{OWN_ADDRESS}/24", "dev", _BRIDGE)
            _ip("link", "set", _BRIDGE, "up")
            cloud.restart_network(self._python, "neutron.wsgi.api")
            self._create_network()
            yield
        finally:
            cloud.restart_network()
            _ip("link", "delete", _BRIDGE)

    @staticmethod
    def connect(host: Host) -> None:
        """Connect a host's guests with the bridge."""
        tap = machine.guests_tap(host.number)
        _ip("link", "set", tap, "master", _BRIDGE)
        _ip("link", "set", tap, "up")
        host.run(_CARD)

    def _configuration(self) -> settings.Ini:
        layout = self._lab.layout
        common = settings.nova_common(layout)
        return {
            "DEFAULT": {
                "core_plugin": "ml2",
                "auth_strategy": "keystone",
                "transport_url": common["DEFAULT"]["transport_url"],
                "api_paste_config": str(
                    self._place / "etc/neutron/api-paste.ini"
                ),
                "state_path": str(layout.state / "neutron"),
                "notify_nova_on_port_status_changes": "false",
                "notify_nova_on_port_data_changes": "false",
                "dhcp_agent_notification": "false",
            },
            "oslo_concurrency": common["oslo_concurrency"],
            "oslo_messaging_rabbit": common["oslo_messaging_rabbit"],
            "keystone_authtoken": common["keystone_authtoken"],
            "database": {"connection": settings.database(layout, "neutron")},
            "ml2": {
                "type_drivers": "flat",
                "tenant_network_types": "",
                "mechanism_drivers": "guests_card",
            },
            "ml2_type_flat": {"flat_networks": "*"},
        }

    def _create_network(self) -> None:
        """Create the network, with addresses that Nova hands to guests."""
        network: Any = self._lab.api.network
        created = network.create_network(
            name=NAME,
            is_shared=True,
            provider_network_type="flat",
            provider_physical_network=NAME,
        )
        network.create_subnet(
            network_id=created.id,
            ip_version=4,
            cidr=f"{_PREFIX}.0/24",
            is_dhcp_enabled=False,
            gateway_ip=None,
            allocation_pools=[
                {"start": f"{_PREFIX}.10", "end": f"{_PREFIX}.250"}
            ],
        )


def _ip(*words: str) -> None:
    done = run(["ip", *words])
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
