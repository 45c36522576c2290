# SPDX-License-Identifier: Apache-2.0
"""What the tests of images share."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nova.conf
import pytest
from nova import objects

from nova_accel.config import conf
from tests.functional.images import glances
from tests.functional.images.asking import Make, Set
from tests.support.fpga import bitstream_files
from virt_hooks.instance import bitstream_images

CONF = nova.conf.CONF


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    objects.register_all()
    CONF([], default_config_files=[], default_config_dirs=[])


@pytest.fixture
def option() -> Iterator[Set]:
    """Return what sets an option of Nova for one test."""
    seen: list[tuple[str, str]] = []

    def change(group: str, **values: Any) -> None:
        for name, value in values.items():
            CONF.set_override(name, value, group)
            seen.append((name, group))

    yield change
    for name, group in seen:
        CONF.clear_override(name, group)


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[glances.Real | None]:
    """Return the real Glance, None where it isn't installed."""
    if not glances.PYTHON:
        yield None
        return
    with glances.real(tmp_path_factory.mktemp("glance")) as found:
        yield found


@pytest.fixture
def standin(option: Set) -> Iterator[glances.StandIn]:
    """Return a Glance that can fail."""
    found = glances.StandIn()
    option("glance", api_servers=[found.url], num_retries=0)
    yield found
    found.close()


@pytest.fixture(params=["real", "stand-in"])
def glance(
    request: pytest.FixtureRequest, real: glances.Real | None, option: Set
) -> glances.Glance:
    if request.param == "stand-in":
        found: glances.StandIn = request.getfixturevalue("standin")
        return found
    if real is None:
        pytest.skip("Glance is not installed")
    option("glance", api_servers=[real.url], num_retries=0)
    return real


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes Images on one directory, as a restart does."""

    def images(**changed: Any) -> bitstream_images.BitstreamImages:
        given = conf.BitstreamSettings(
            owners=frozenset({bitstream_files.OWNER}),
            state_dir=str(tmp_path / "accel"),
            limit=bitstream_files.MIB,
        )
        return bitstream_images.BitstreamImages(
            dataclasses.replace(given, **changed)
        )

    return images
