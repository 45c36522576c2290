# SPDX-License-Identifier: Apache-2.0
"""The running lab, for tests that drive its real services."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.support import site, vm_site
from tests.lab import vm
from tests.lab.cloud.cloud import Cloud
from tests.lab.cloud.layout import read_layout
from tests.lab.cloud.processes import tail
from tests.lab.vm.layout import layout_of

_LOGS = ("nova-compute", "nova-scheduler", "nova-conductor")


@pytest.fixture(scope="session")
def lab() -> site.Site:
    """Return the lab that is up; without one there is nothing to test."""
    cloud = Cloud(read_layout())
    if not cloud.is_up():
        pytest.fail("no lab is up: run tests/lab/lab test", pytrace=False)
    return site.Site(cloud)


@pytest.fixture
def clean(lab: site.Site) -> Iterator[None]:
    """Start from an empty cloud, and leave one."""
    lab.clean()
    yield
    lab.clean()


@pytest.fixture(scope="session")
def lab_vm() -> Iterator[pathlib.Path]:
    """Return the lab whose VM is up; one that was not ends with us."""
    home = os.environ.get("NOVA_ACCEL_LAB", str(vm_site.REPOSITORY / ".lab"))
    path = pathlib.Path(home).resolve()
    if vm.is_up(path):
        yield path
        return
    vm.prepare(path)
    vm.start(path, share=path / "vm-test-share")
    yield path
    vm.stop(path)
    place = layout_of(path)
    assert not vm.is_up(path)
    assert f" {place.root}/" not in pathlib.Path("/proc/mounts").read_text()
    assert not list(place.serve.glob("*.sock"))
    listing = vm_site.run("ps", "-eo", "args")
    assert f"path={place.serve}" not in listing.stdout


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the ends of the services' logs to the report of a failure."""
    report = yield
    if report.failed and "clean" in getattr(item, "fixturenames", ()):
        layout = read_layout()
        for name in _LOGS:
            text = tail(layout.log / f"{name}.log", 40)
            report.sections.append((f"end of {name}", text))
    return report
