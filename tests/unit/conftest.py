# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests."""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova_accel.host.execute import privileged
from tests.lab import fakehost
from tests.support.hosts import domains, simulated
from virt_hooks.spawn import host_access, lifecycle, scrubbing

# None where Nova is not installed.
privsep: Any = vars(privileged)["privsep"]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a driver to bind for half a second, not for five."""
    monkeypatch.setattr(scrubbing, "_BIND_S", 0.5)


@pytest.fixture
def own_rights() -> Iterator[None]:
    """Change the host in this process, also where Nova is installed."""
    privileged.run_here()
    yield
    if privsep is not None:
        privsep.sys_admin_pctxt.set_client_mode(True)


@pytest.fixture(scope="module")
def mounted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fakehost.Controller]:
    """Return a simulated host that serves all tests of a module.

    It is the module's ``SPEC``, mounted by its ``MOUNT``, where it has them.
    """
    if reason := fakehost.missing():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("host")
    mount = getattr(request.module, "MOUNT", fakehost.simulated_sysfs)
    spec = getattr(request.module, "SPEC", simulated.SPEC)
    with mount(spec, root) as controller:
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
def libvirt() -> domains.SimulatedDomains:
    """Return the host devices of the host's domains: none."""
    return domains.SimulatedDomains()


@pytest.fixture
def life(
    kernel: fakehost.Controller, libvirt: domains.SimulatedDomains
) -> lifecycle.Lifecycle:
    """Return what a nova-compute that has just started holds."""
    access = host_access.HostAccess(domains=libvirt)
    return simulated.started(kernel, access=access)


@pytest.fixture
def state(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return where a service has its notes; it is not made yet."""
    return tmp_path / "state"
