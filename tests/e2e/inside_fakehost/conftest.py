# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import libvirt
import pytest

from tests.lab.fakehost.control.controller import ENVIRONMENT, Controller

if ENVIRONMENT not in os.environ:
    # tests/e2e/test_fakehost.py runs them where they belong
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def host() -> Iterator[Controller]:
    controller = Controller.from_environment()
    yield controller
    controller.heal()
    controller.close()


@pytest.fixture(scope="session")
def connection() -> Iterator[libvirt.virConnect]:
    libvirt.registerErrorHandler(lambda context, error: None, None)
    opened = libvirt.open("qemu:///system")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _clean(host: Controller, connection: libvirt.virConnect) -> Iterator[None]:
    yield
    for domain in connection.listAllDomains():
        domain.destroy()
    for name in host.mdevs():
        (host.sys / "bus/mdev/devices" / name / "remove").write_text("1")


@pytest.fixture
def new_uuid() -> str:
    return str(uuid.uuid4())
