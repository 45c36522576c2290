# SPDX-License-Identifier: Apache-2.0
"""A live migration that is refused: the guest does not notice.

Other reasons are in tests/functional/nova/operations/test_live_migration.py.
"""

import pytest

from tests.e2e.support.live_guest import Booter
from tests.e2e.support.second_host import MTTY_2, TwoHosts
from tests.e2e.support.site import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean", "restart"),
]


def test_without_a_log_of_written_pages(
    lab: Site, two: TwoHosts, boot: Booter
) -> None:
    guest = boot()
    guest.set_registers("K")
    lab.restart_compute("log", "live_migration_without_iommufd = False")
    offset = lab.log_offset("nova-compute")
    try:
        assert guest.migrate(two.second) == "error"
        assert lab.logged("nova-compute", "has no IOMMUFD", offset)
        two.check("refused", first=MTTY_2)
        guest.check_registers("K")
    finally:
        lab.cloud.restart_compute()
