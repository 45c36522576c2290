# SPDX-License-Identifier: Apache-2.0
"""Operations on one host, with each technology."""

from pathlib import Path
from typing import Any

import pytest

from tests.functional.nova.support import operations, releases, technologies
from tests.support import examples

pytestmark = pytest.mark.oldest
#: Files that make a vGPU, or remove it.
_MAKING = ("create", "remove", "current_vgpu_type")
_LIVE = "snapshot" if releases.has_disks() else ""
_STEPS = (
    f"reboot_soft reboot_hard stop restart_service snapshot start {_LIVE}"
    " pause unpause rescue unrescue restart_service rebuild suspend resume"
    " shelve unshelve"
)
#: Those of a push, with all technologies but the first one.
_USUAL_STEPS = "reboot_hard stop restart_service start rebuild suspend resume"


class InPlace(operations.OperationsTestBase):
    """A server that stays on its host."""

    __test__ = False

    def list_changes(self) -> list[Any]:
        """Return what made or removed a partition, or loaded a region."""
        host = self.hosts["host1"]
        made = [w for w in host.writes() if Path(w["path"]).name in _MAKING]
        return [*made, *host.programmings()]

    def test_in_place(self) -> None:
        """The device that the spawn made serves until the delete."""
        self.start_hosts("host1")
        server = self.boot(self.technology.small(self))
        slots, changes = self.slots(server), self.list_changes()
        is_first = self.technology is technologies.ALL[0]
        steps = _STEPS if is_first or examples.IS_WHOLE else _USUAL_STEPS
        for step in steps.split():
            getattr(self, step)(server)
            self.assert_agreement(step, step in ("stop", "suspend", "shelve"))
            self.assertEqual(slots, self.slots(server), step)
            self.assertEqual(changes, self.list_changes(), step)
        self._delete_server(server)
        self.assert_agreement("delete", is_passed=True)
        self.assert_nothing_left()


globals().update(technologies.matrix(InPlace, *technologies.ALL))
