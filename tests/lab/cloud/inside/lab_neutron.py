# SPDX-License-Identifier: Apache-2.0
"""Neutron's side of the network on which this computer reaches guests.

A mechanism driver of ML2, and what creates the tables: Neutron's migrations
know no sqlite. There is no agent: libvirt makes a macvtap of each port, on
the network card that the VMs have for guests.
"""

import sys
from typing import Any

import sqlalchemy
from neutron.db.migration.models import head
from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api

#: The card's name in the VMs.
CARD = "guests"
_DETAILS = {
    portbindings.VIF_DETAILS_MACVTAP_SOURCE: CARD,
    portbindings.VIF_DETAILS_MACVTAP_MODE: "bridge",
    portbindings.VIF_DETAILS_PHYSICAL_INTERFACE: CARD,
    portbindings.CAP_PORT_FILTER: False,
}


class GuestsCard(api.MechanismDriver):  # type: ignore[misc]
    """Binds each port, on each host."""

    def initialize(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def bind_port(self, context: Any) -> None:
        """Bind a port to the card; it is active at once."""
        segment = context.segments_to_bind[0]
        context.set_binding(
            segment[api.ID],
            portbindings.VIF_TYPE_MACVTAP,
            _DETAILS,
            constants.PORT_STATUS_ACTIVE,
        )


if __name__ == "__main__":
    engine = sqlalchemy.create_engine(sys.argv[1])
    head.get_metadata().create_all(engine)
