# SPDX-License-Identifier: Apache-2.0
"""Moves between hosts and resizes, with each technology."""

from typing import Any

import pytest

from tests.functional.nova.support import operations, technologies

pytestmark = pytest.mark.each_release


def _nothing(_: Any) -> dict[str, str]:
    return {}


@pytest.mark.oldest
class Moves(operations.OperationsTestBase):
    """A server that has two hosts."""

    __test__ = False

    def setUp(self) -> None:
        super().setUp()
        self.power_off_to_move()
        self.start_hosts("host1", "host2")

    def test_moves(self) -> None:
        server = self.boot(self.technology.small(self), host="host1")
        for name, specs, end, host in (
            ("migrate", None, "confirm", "host2"),
            ("resize", self.technology.other, "revert", "host2"),
            ("resize to none", _nothing, "confirm", "host1"),
            ("resize from none", self.technology.small, "confirm", "host2"),
        ):
            if specs is None:
                self.migrate(server)
            else:
                self.resize(server, specs(self))
            self.assert_agreement(name, is_passed=True)
            getattr(self, end)(server)
            self.assert_agreement(f"{name}, {end}")
            self.assertEqual(host, self.host_of(server), name)
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left("host1")
        self.assert_nothing_left("host2")


@pytest.mark.oldest
class Leaves(operations.OperationsTestBase):
    """A server that leaves its host, or whose host leaves it."""

    __test__ = False

    def test_leaves(self) -> None:
        self.start_hosts("host1", "host2")
        server = self.boot(self.technology.small(self), host="host1")
        self.offload(server)
        self.assert_agreement("offload", is_passed=True)
        self.assert_nothing_left("host1")
        self.unshelve(server)
        self.assert_agreement("unshelve", is_passed=True)
        dead = self.host_of(server)
        (alive,) = {"host1", "host2"} - {dead}
        self.computes[dead].stop()
        self.force_down(True, dead)
        self.be_on(alive)
        self._evacuate_server(server, expected_host=alive)
        self.assert_agreement("evacuate", False, alive)
        self._start_server(server)
        self.be_on(dead)
        self.restart(dead)
        self.force_down(False, dead)
        self.assert_agreement("the dead host's return", is_passed=True)
        self.assert_nothing_left(dead)
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left(alive)


class SameHost(operations.OperationsTestBase):
    """A server that is resized where it is."""

    __test__ = False

    def test_resizes(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.power_off_to_move()
        self.start_hosts("host1")
        small, other = self.technology.small, self.technology.other
        server = self.boot(small(self))
        for name, specs, end in (
            ("to other", other, "revert"),
            ("to other", other, "confirm"),
            ("to none", _nothing, "revert"),
            ("to none", _nothing, "confirm"),
            ("from none", small, "confirm"),
        ):
            self.resize(server, specs(self))
            self.assert_agreement(f"resize {name}", is_passed=True)
            if specs is other:
                self.restart()
                self.assert_agreement("a restart meanwhile")
            getattr(self, end)(server)
            self.assert_agreement(f"resize {name}, {end}")
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left()


_ALSO = technologies.ALL[1:]
for case in (Moves, Leaves):
    globals().update(technologies.matrix(case, technologies.MDEV, also=_ALSO))
globals().update(technologies.matrix(SameHost, also=technologies.ALL))
