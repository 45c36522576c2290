# SPDX-License-Identifier: Apache-2.0
"""A second host with a kernel and a libvirt of its own, and who may go there.

It costs memory and a processor's time, so it is there for some tests only.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.e2e.support.agreement import Agreement
from tests.e2e.support.site import Site
from tests.lab.cloud.hosts import Host
from tests.lab.cloud.installations import Installation
from tests.lab.cloud.layout import Layout
from tests.lab.vm.layout import layout_of

MTTY_1, MTTY_2 = "mtty-1", "mtty-2"
#: Restarts a host's nova-compute with options of a section of its file.
Restarter = Callable[..., None]
#: Powers off and gives devices away when it is asked to.
_GUEST = "acker.img"
_SET_VERSIONS = "UPDATE services SET version = ?"
_DATABASE_S = 60.0
#: Most that Nova is left to end what it has said to have done.
_SETTLING_S = 60.0


def retry_comparison(compare: Callable[[], None]) -> None:
    """Repeat a comparison for some seconds until it raises no AssertionError.

    Nova reports a server's new state before it has released what the server
    had.
    """
    until = time.monotonic() + _SETTLING_S
    while True:
        try:
            compare()
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def record_release(layout: Layout, version: int) -> None:
    """Have all of Nova's services recorded with the number of a release."""
    path = layout.databases / "nova_cell1.sqlite"
    connection = sqlite3.connect(path, timeout=_DATABASE_S)
    with contextlib.closing(connection) as database:
        database.execute(_SET_VERSIONS, (version,))
        database.commit()


class TwoHosts:
    """The lab's own host and a second one, with what tests do on both.

    :param nova: what the second host's nova-compute is started from, if it
        is not that of the control plane.
    """

    def __init__(self, lab: Site, nova: Installation | None = None) -> None:
        self.lab = lab
        # Asked before its nova-compute runs: a root runs one command.
        self._version = nova.service_version() if nova else None
        self.first, self.second = Host(lab.cloud, 0), Host(lab.cloud, 1, nova)
        self.law = Agreement(lab, (self.first, self.second))

    def start(self) -> None:
        """Start the second host."""
        self.second.start()

    def stop(self) -> None:
        """End the second host, and let Nova and Placement forget it."""
        self.second.stop()
        self.lab.api.compute.delete_service(self.service(self.second))
        providers = self.lab.provider_names().values()
        assert not [name for name in providers if self.second.node in name]

    def service(self, host: Host) -> Any:
        """Return Nova's record of a host's nova-compute."""
        services = self.lab.api.compute.services(binary="nova-compute")
        (record,) = (
            service for service in services if service.host == host.name
        )
        return record

    @contextlib.contextmanager
    def without(self, host: Host) -> Iterator[None]:
        """Let no server come to a host meanwhile."""
        compute = self.lab.api.compute
        compute.disable_service(self.service(host))
        try:
            yield
        finally:
            compute.enable_service(self.service(host))

    def lower_versions(self) -> None:
        """Have Nova's services recorded with the second host's release.

        Nova starts no service where all others of its kind are newer, and
        reports none of these as alive again: those of this cloud count as
        not upgraded until they start again.
        """
        if self._version is not None:
            record_release(self.lab.layout, self._version)

    def set_dead(self, host: Host, is_dead: bool) -> None:
        """Report to Nova that a host is dead, or alive again."""
        if not is_dead:
            self.lower_versions()
        self.lab.api.compute.update_service_forced_down(
            self.service(host), forced=is_dead
        )

    def flavor(self, kind: str) -> Any:
        """Create a flavor for one mdev of a type; none for an empty one."""
        if not kind:
            return self.lab.flavor("plain")
        trait = f"CUSTOM_MDEV_{kind.replace('-', '_').upper()}"
        specs = {
            "resources_ACCEL1__CUSTOM_MDEV": "1",
            f"trait_ACCEL1__{trait}": "required",
        }
        return self.lab.flavor(kind, **specs)

    def image(self) -> str:
        """Upload the guest that answers; return the image's id."""
        place = layout_of(self.lab.layout.lab)
        return self.lab.image("guest", (place.standins / _GUEST).read_bytes())

    def boot(self, name: str, host: Host, flavor: Any, image: str) -> Any:
        """Boot a server on a host; return it when it is ACTIVE."""
        # Nova takes the host's name here, and no other word for it.
        return self.lab.boot(name, flavor, image_id=image, host=host.name)

    def check(self, occasion: str, first: str = "", second: str = "") -> None:
        """Compare all, and see these types of mdevs on the hosts.

        :param first: the types, with a space between, on the first host.
        """
        retry_comparison(lambda: self._check(occasion, first, second))

    def _check(self, occasion: str, first: str, second: str) -> None:
        mdevs_of = self.law.check(occasion)
        kinds = {h: sorted(mdevs.values()) for h, mdevs in mdevs_of.items()}
        expected = {
            self.first.name: sorted(first.split()),
            self.second.name: sorted(second.split()),
        }
        assert kinds == expected, occasion

    def host_of(self, server: Any) -> str:
        """Return the name of the host that Nova has a server on."""
        now = self.lab.api.compute.get_server(server.id)
        return str(now.compute_host)
