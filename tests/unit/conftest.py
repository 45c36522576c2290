# SPDX-License-Identifier: Apache-2.0
"""What several unit tests share."""

from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel.host import privileged
from tests import simulated
from tests.lab import fakehost
from virt_hooks import lifecycle

# None where Nova is not installed.
privsep: Any = vars(privileged)["privsep"]


@pytest.fixture
def own_rights() -> Iterator[None]:
    """Change the host in this process, also where Nova is installed."""
    privileged.run_here()
    yield
    if privsep is not None:
        privsep.sys_admin_pctxt.set_client_mode(True)


@pytest.fixture(scope="module")
def mounted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[fakehost.Controller]:
    """Return a simulated host that serves all tests of a module."""
    if reason := fakehost.missing():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("host")
    with fakehost.simulated_sysfs(simulated.SPEC, root) as controller:
        yield controller


@pytest.fixture
def kernel(
    mounted: fakehost.Controller, own_rights: None
) -> fakehost.Controller:
    """Return a simulated host that has just been booted."""
    mounted.heal()
    mounted.reboot()
    return mounted


@pytest.fixture
def life(kernel: fakehost.Controller) -> lifecycle.Lifecycle:
    """Return what a nova-compute that has just started holds."""
    return simulated.started(kernel)
