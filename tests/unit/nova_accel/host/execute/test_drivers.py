# SPDX-License-Identifier: Apache-2.0
"""Drivers are bound and unbound on a simulated kernel."""

import errno
from pathlib import Path

import pytest

from nova_accel.model import actions
from tests.lab import fakehost
from tests.support.hosts import executing
from tests.support.hosts.executing import (
    CARD,
    driver_of,
    executor,
    failure,
    path_of,
)

pytestmark = pytest.mark.usefixtures("own_rights")
SPEC = executing.SPEC


def bind(driver: str, function: str = CARD) -> actions.BindDriver:
    return actions.BindDriver(function=function, driver=driver)


def test_a_function_is_bound_to_vfio_pci_and_back(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    before = executing.state(kernel)
    action = actions.BindDriver(
        function=CARD, driver="vfio-pci", before="nouveau"
    )
    assert [on_host.apply(action) for _ in range(2)] == [True, False]
    # The override keeps it from other drivers at the next scan of the bus.
    assert driver_of(kernel, CARD) == ("vfio-pci", "vfio-pci")
    assert [on_host.apply(action.undo()) for _ in range(2)] == [True, False]
    assert executing.state(kernel) == before
    assert driver_of(kernel, CARD) == ("nouveau", "")


def test_an_override_without_a_driver_is_cleared(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    on_host.apply(bind(""))
    override = kernel.sys / path_of(CARD, "driver_override")
    override.write_text("vfio-pci")
    assert on_host.apply(bind(""))
    assert driver_of(kernel, CARD) == ("", "")


def test_an_unloaded_driver_is_refused_before_any_write(
    kernel: fakehost.Controller,
) -> None:
    error = failure(kernel.root, bind("no-such-driver"))
    assert error.number == errno.ENOPKG
    assert "modprobe" in error.hint
    assert kernel.writes() == []


@pytest.mark.skipif(
    bool(fakehost.missing()), reason=fakehost.missing() or "simulated"
)
def test_a_function_that_no_driver_accepts_is_bound_again(
    tmp_path: Path,
) -> None:
    """drivers_probe succeeds although vfio-pci wants an IOMMU."""
    spec = fakehost.HostSpec(cards=executing.SPEC.cards[-1:], iommu=False)
    with fakehost.simulated_sysfs(spec, tmp_path) as kernel:
        before = executing.state(kernel)
        error = failure(kernel.root, bind("vfio-pci"))
        assert error.number == 0
        assert "bound to no driver" in str(error)
        assert "is the IOMMU on" in error.hint
        assert executing.state(kernel) == before


def test_a_refused_probe_restores_the_driver(
    kernel: fakehost.Controller,
) -> None:
    before = executing.state(kernel)
    kernel.fail("bus/pci/drivers_probe", "EINVAL", times=1)
    error = failure(kernel.root, bind("vfio-pci"))
    assert error.number == errno.EINVAL
    assert "IOMMU" in error.hint
    assert executing.state(kernel) == before


def test_a_missing_function_is_enoent(kernel: fakehost.Controller) -> None:
    kernel.unplug(CARD)
    error = failure(kernel.root, bind("vfio-pci"))
    assert error.number == errno.ENOENT
    assert "is gone" in error.hint
