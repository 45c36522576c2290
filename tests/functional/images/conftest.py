# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of bitstream images."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nova.conf
import pytest
from nova import objects

from nova_accel.config import conf
from tests.functional.images import glances
from tests.functional.images.image_requests import Make, Set
from tests.support.fpga import bitstream_files
from virt_hooks.operations.fpga import bitstream_images

CONF = nova.conf.CONF


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    objects.register_all()
    CONF([], default_config_files=[], default_config_dirs=[])


@pytest.fixture
def option() -> Iterator[Set]:
    """Return a function that sets Nova's options for one test."""
    overrides: list[tuple[str, str]] = []

    def change(group: str, **values: Any) -> None:
        for name, value in values.items():
            CONF.set_override(name, value, group)
            overrides.append((name, group))

    yield change
    for name, group in overrides:
        CONF.clear_override(name, group)


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[glances.Real | None]:
    """Return the real Glance, None where it isn't installed."""
    if not glances.PYTHON:
        yield None
        return
    with glances.real(tmp_path_factory.mktemp("glance")) as server:
        yield server


@pytest.fixture
def standin(option: Set) -> Iterator[glances.StandIn]:
    """Return a Glance that can fail."""
    server = glances.StandIn()
    option("glance", api_servers=[server.url], num_retries=0)
    yield server
    server.close()


@pytest.fixture(params=["real", "stand-in"])
def glance(
    request: pytest.FixtureRequest, real: glances.Real | None, option: Set
) -> glances.Glance:
    if request.param == "stand-in":
        server: glances.StandIn = request.getfixturevalue("standin")
        return server
    if real is None:
        pytest.skip("Glance is not installed")
    option("glance", api_servers=[real.url], num_retries=0)
    return real


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a factory of BitstreamImages on the same directory."""

    def images(
        api: Any = None, **changed: Any
    ) -> bitstream_images.BitstreamImages:
        settings = conf.BitstreamSettings(
            owners=frozenset({bitstream_files.OWNER}),
            cache_dir=str(tmp_path / "accel/bitstreams"),
            limit=bitstream_files.MIB,
        )
        return bitstream_images.BitstreamImages(
            dataclasses.replace(settings, **changed), api
        )

    return images
