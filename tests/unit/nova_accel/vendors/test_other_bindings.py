# SPDX-License-Identifier: Apache-2.0
"""A server or a line of policy may have a card unlike its equals.

Their problems are in the golden report of the host.
"""

import json
import pathlib

import pytest

from nova_accel.config import policy
from nova_accel.discovery import scan
from nova_accel.host.sysfs import host_reader
from tests.hosts import look

HOST = "bound-otherwise"


@pytest.mark.parametrize(
    "address",
    ["0000:42:00.0", "0000:43:00.0", "0000:64:00.0", "0000:84:00.0"],
)
def test_a_line_of_policy_offers_a_card_unlike_its_equals(
    tmp_path: pathlib.Path, address: str
) -> None:
    line = json.dumps({"address": address, "use": "passthrough"})
    state = look.read(look.make(HOST, tmp_path), [line])
    assert look.device(state, address).technology == "passthrough"
    assert not look.reasons(state, address)


def test_a_card_of_a_server_stays_offered_whatever_its_equals_have(
    tmp_path: pathlib.Path,
) -> None:
    """Servers that older releases gave it to keep it."""
    addresses = ("0000:42:00.0", "0000:43:00.0")
    state = scan.read(
        host_reader.HostReader(look.make(HOST, tmp_path)),
        look.DRIVERS,
        policy.DeviceRules(assigned=frozenset(addresses)),
    )
    for address in addresses:
        assert look.device(state, address).technology == "passthrough"
        reasons = look.reasons(state, address)
        assert "offered only to the server that has it" in reasons
        assert f"bind {address} to nvidia" in reasons
