# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from tests.lab.fakehost import Controller
from tests.support.fpga import simulated


@pytest.fixture(scope="module")
def _mounted(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Controller]:
    """Mount the host of a module: its SPEC, or that of all cards."""
    spec = getattr(request.module, "SPEC", simulated.SPEC)
    with simulated.mounted(spec, tmp_path_factory.mktemp("fpga")) as kernel:
        yield kernel


@pytest.fixture
def host(_mounted: Controller) -> Iterator[Controller]:
    _mounted.reboot()
    yield _mounted
    _mounted.heal()  # ends calls that hang in threads of this process
