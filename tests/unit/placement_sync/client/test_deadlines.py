# SPDX-License-Identifier: Apache-2.0
"""Deadlines of the responses of a session."""

import requests
from keystoneauth1 import session as ksa

from placement_sync.client import deadlines


def test_a_session_of_several_clients_has_them_once() -> None:
    """The shell ``openstack`` has one session for all of its commands."""
    session = requests.Session()
    session.mount("https://", ksa.TCPKeepAliveAdapter())
    deadlines.mount(session)
    before = dict(session.adapters)
    deadlines.mount(session)
    assert dict(session.adapters) == before
    assert isinstance(before["https://"], ksa.TCPKeepAliveAdapter)
