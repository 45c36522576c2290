# SPDX-License-Identifier: Apache-2.0
"""The running lab, for tests that drive its real services."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import site
from tests.lab.cloud.cloud import Cloud
from tests.lab.cloud.layout import read_layout
from tests.lab.cloud.processes import tail

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
