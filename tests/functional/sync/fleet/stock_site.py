# SPDX-License-Identifier: Apache-2.0
"""Cloud whose stock is published, and served behind keystonemiddleware."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel.model import names
from placement_sync.fleet.stock import stock_file, wsgi
from tests.functional.sync.commands import programs, test_explain
from tests.functional.sync.fleet import wsgi_server
from tests.functional.sync.support import identity, nova_standin, servers

#: Starts that the published levels promise to survive.
STARTS = 2
ONE = {
    "resources_A:VGPU": "1",
    "resources_A:CUSTOM_GPU_MEMORY_MB": "4096",
    f"trait_A:{test_explain.PROFILE}": "required",
}
T4_16Q = "CUSTOM_VGPU_NVIDIA_T4_16Q"


class Site:
    """Cloud in Placement and in a substitute for Nova."""

    def __init__(
        self,
        placement: servers.Server,
        nova: nova_standin.Nova,
        place: pathlib.Path,
    ) -> None:
        self.placement, self.nova, self.place = placement, nova, place
        self.cloud = test_explain.Cloud(placement)
        placement.call("PUT", f"/traits/{T4_16Q}")

    def add_host(self, name: str, cards: str, **needs: int) -> list[str]:
        inventories = {"VCPU": 64, "MEMORY_MB": 65536, "DISK_GB": 999} | needs
        root = self.cloud.add(name, inventories)
        self.nova.add_host(root, name)
        return [
            self.cloud.add(
                f"{name}_accel_0000:{card}:00.0",
                {"VGPU": 16, names.GPU_MEMORY_CLASS: 16384},
                *(*self.cloud.usual, test_explain.PROFILE, T4_16Q),
                parent=root,
            )
            for card in cards
        ]

    def publish(self, *words: str) -> int:
        return programs.main(
            [
                *("stock", "publish", "--directory", str(self.place)),
                *("--starts", str(STARTS), "--endpoint", self.placement.url),
                *("--compute-endpoint", self.nova.url, *words),
            ]
        )

    @property
    def path(self) -> str:
        return str(self.place / stock_file.NAME)

    def read(self) -> dict[str, Any]:
        """Return the published stock of all projects by flavor."""
        stock = stock_file.read(self.path)
        assert stock is not None
        return {f.name: f.get_stock(stock_file.OTHERS) for f in stock.flavors}

    def list_levels(self) -> dict[str, str]:
        assert self.publish() == 0
        return {name: stock.level for name, stock in self.read().items()}


@contextlib.contextmanager
def serving(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[identity.Identity]:
    """Serve the stock to users of the cloud ``north``; yield Keystone."""
    with identity.Identity(site.placement.url).running() as keystone:
        conf = wsgi_server.write_conf(site.place, keystone.url)
        monkeypatch.setenv("NOVA_ACCEL_STOCK_FILE", site.path)
        application = wsgi.build_application([conf])
        with wsgi_server.serving(application) as url:
            keystone.services = {
                "compute": site.nova.url,
                stock_file.SERVICE.name: url,
            }
            clouds_file = wsgi_server.write_clouds(site.place, keystone.url)
            monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", clouds_file)
            keystone.roles = ["member"]
            yield keystone
