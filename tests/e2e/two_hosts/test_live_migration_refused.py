# SPDX-License-Identifier: Apache-2.0
"""Live migrations that are refused before anything happens.

The server stays where it is, and its guest does not notice.
"""

import pytest

from tests.e2e.support.live_guest import Booter
from tests.e2e.support.second_host import MTTY_1, MTTY_2, TwoHosts
from tests.e2e.support.site import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.usefixtures("newer_root", "clean"),
]


def test_by_a_host_whose_card_is_full(two: TwoHosts, boot: Booter) -> None:
    guest = boot()
    guest.set_registers("K")
    small = two.flavor(MTTY_1)
    for name in ("e2e-filler-1", "e2e-filler-2"):
        two.boot(name, two.second, small, two.image())

    assert guest.migrate(two.second) == "error"
    two.check("refused", first=MTTY_2, second=f"{MTTY_1} {MTTY_1}")
    guest.check_registers("K")


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
