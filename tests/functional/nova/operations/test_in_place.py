# SPDX-License-Identifier: Apache-2.0
"""Operations on one host, with each technology."""

import pytest

from tests.functional.nova.support import operations, releases, technologies

pytestmark = pytest.mark.each_release


class InPlace(operations.OperationsTestBase):
    """A server that stays on its host."""

    __test__ = False

    def test_in_place(self) -> None:
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        slots = self.slots(server)
        live = "snapshot" if releases.has_disks() else ""
        for step in (
            f"reboot_soft reboot_hard stop snapshot start {live} pause"
            " unpause rescue unrescue rebuild suspend resume"
            " shelve unshelve"
        ).split():
            getattr(self, step)(server)
            self.assert_agreement(step, step in ("stop", "suspend", "shelve"))
            self.assertEqual(slots, self.slots(server), step)
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left()


globals().update(
    technologies.matrix(
        InPlace,
        technologies.MDEV,
        also=(
            technologies.TYPED_VF,
            technologies.PLAIN_VF,
            technologies.WHOLE,
            technologies.REGION,
        ),
    )
)
