# SPDX-License-Identifier: Apache-2.0
"""Deadlines of the responses of a session."""

import requests
from keystoneauth1 import session as ksa

from virt_hooks.ironic import deadlines


def test_a_session_has_them_once() -> None:
    session = requests.Session()
    session.mount("https://", ksa.TCPKeepAliveAdapter())
    deadlines.mount(session)
    before = dict(session.adapters)
    deadlines.mount(session)
    assert dict(session.adapters) == before
    assert isinstance(before["https://"], ksa.TCPKeepAliveAdapter)
