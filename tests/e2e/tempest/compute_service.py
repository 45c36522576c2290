# SPDX-License-Identifier: Apache-2.0
"""Stop or start a host's nova-compute: ``NUMBER OVERLAY stop|start``.

A host that is stopped is reported to Nova as dead, as by what fences hosts.
"""

import pathlib
import sys

from tests.e2e.support.site import Site
from tests.e2e.tempest import card_hosts
from tests.lab.cloud.cloud import Cloud
from tests.lab.cloud.layout import read_layout


def main() -> None:
    """Do it, and return when it is done."""
    number, overlay, action = sys.argv[1:]
    lab = Site(Cloud(read_layout()))
    host = card_hosts.find_host(lab, int(number))
    if action == "stop":
        host.stop_compute()
    else:
        host.start_compute(pathlib.Path(overlay))
    card_hosts.set_dead(lab, host, action == "stop")


if __name__ == "__main__":
    main()
