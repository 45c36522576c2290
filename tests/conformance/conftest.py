# SPDX-License-Identifier: Apache-2.0
"""Options and fixtures: every installed driver, or named ones, on all hosts.

pytest tests/conformance
pytest tests/conformance --driver mycard --every

On each push a driver is checked on a tenth of the hosts, each host with a
tenth of the drivers, and a driver on one of the two simulated hosts;
NOVA_ACCEL_EXAMPLES=100 checks all pairs.
"""

import pathlib

import pytest

from nova_accel.discovery import plugin
from nova_accel.host.sysfs import fs
from tests.functional.fakehost.support import cards
from tests.hosts import look, recorded
from tests.lab import fakehost
from tests.support import examples

HOSTS = (
    *look.NAMES,
    *(f"recorded/{name}" for name in recorded.NAMES),
)
# Drivers that have devices on the simulated host of many GPUs only.
_OF_GPUS = frozenset({"amd_mxgpu", "nvidia_vfio", "qat"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--driver",
        action="append",
        default=[],
        metavar="NAME",
        help="check this driver only; may be repeated",
    )
    parser.addoption(
        "--every",
        action="store_true",
        help="make every file unreadable in turn",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames:
        selected = metafunc.config.getoption("driver")
        names = selected or sorted(plugin.list_drivers())
        if "spec" in metafunc.fixturenames:
            metafunc.parametrize(
                ("driver", "spec"),
                [
                    pytest.param(name, spec, id=f"{name}-{label}")
                    for name in names
                    for label, spec, is_pushed in (
                        ("few", cards.SPEC, name not in _OF_GPUS),
                        ("gpus", cards.GPUS, name in _OF_GPUS),
                    )
                    if is_pushed or selected or examples.IS_WHOLE
                ],
            )
            return
        pairs = [
            (name, host)
            for number, name in enumerate(names)
            for host in (HOSTS if selected else examples.part(HOSTS, number))
        ]
        metafunc.parametrize(("driver", "source"), pairs, indirect=["source"])


@pytest.fixture
def every(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("every"))


@pytest.fixture
def source(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> fs.FileSource:
    """Return the files of one host."""
    name: str = request.param
    if name.startswith("recorded/"):
        return recorded.load(name.partition("/")[2])
    return fs.DiskSource(look.make(name, tmp_path))


@pytest.fixture(scope="session")
def needs_fuse() -> None:
    if reason := fakehost.missing():
        pytest.skip(reason)
