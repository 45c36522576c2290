# SPDX-License-Identifier: Apache-2.0
"""Upgrade from an earlier release with servers running, and back."""

import inspect
from typing import Any

from tests.functional.nova.support import (
    audit,
    loaded_release,
    operations,
    technologies,
)
from tests.support import earlier_release


class Upgrade(operations.OperationsTestBase):
    """Servers of the earlier release, which keep their partitions."""

    __test__ = False
    release = earlier_release.LAST

    def setUp(self) -> None:
        if reason := earlier_release.find_missing(self.release):
            self.skipTest(reason)
        super().setUp()

    def test_upgrade_and_downgrade(self) -> None:
        with loaded_release.loaded(self.release):
            self.start_hosts("host1")
            first = self.boot(self.technology.small(self))
            second = self.boot(self.technology.other(self))
            self.assert_release(is_earlier=True)
            self.run_periodics()
            self.assert_agreement("boot of the earlier release")
            before = self.read_servers(first, second)
        self.restart()
        self.assert_release(is_earlier=False)
        self.assertEqual(before, self.read_servers(first, second))
        self.assert_agreement("upgrade", is_passed=True)
        self.assertEqual([], audit.run(self, status=0)["findings"])
        self.reboot_hard(second)
        self._delete_server(first)
        third = self.boot(self.technology.small(self))
        self.assert_agreement("delete and boot", is_passed=True)
        before = self.read_servers(second, third)
        with loaded_release.loaded(self.release):
            self.restart()
            self.assert_release(is_earlier=True)
            self.assertEqual(before, self.read_servers(second, third))
            self.assert_agreement("downgrade", is_passed=True)
            self._delete_server(second)
            self._delete_server(third)
            self.assert_agreement("delete after the downgrade")
            self.assert_nothing_left()

    def assert_release(self, is_earlier: bool) -> None:
        """Check which release the code of nova-compute is from."""
        code = inspect.getfile(type(self.computes["host1"].driver._accel))
        directory = loaded_release.unpack_wheel(self.release)
        self.assertEqual(is_earlier, code.startswith(directory), code)

    def read_servers(self, *servers: Any) -> list[Any]:
        """Return claims, hostdevs, slots and allocations of servers."""
        accel = self.computes["host1"].driver._accel
        return [
            (
                {
                    (c.provider, c.slot, c.profile, c.parent, c.handle)
                    for c in accel.claims_of(server["id"])
                },
                self.domain(server).XMLDesc(0),
                self.slots(server),
                self.allocations(server),
            )
            for server in servers
        ]

    def restart(self, name: str = "host1") -> Any:
        """Return nova-compute of the release that is loaded."""
        self.flags(
            group="nova_accel", sync_interval=0, **self.technology.settings
        )
        return super().restart(name)


class UpgradeOlder(Upgrade):
    """Servers of a release whose packages had other names."""

    release = earlier_release.COMMIT


globals().update(
    technologies.matrix(Upgrade, technologies.MDEV, also=technologies.ALL[1:])
    | technologies.matrix(UpgradeOlder, also=technologies.ALL)
)
