# SPDX-License-Identifier: Apache-2.0
"""The mix has the commonest of the latest requests."""

import pytest

from filters.fit import request_mix
from nova_accel.geometry.scheduling import usable_share
from nova_accel.model import flavors


def build_shape(vcpus: int) -> usable_share.RequestShape:
    group = flavors.RequestGroup(suffix="_A", resources={"VGPU": 1})
    return usable_share.build_shape(vcpus, 1, [group])


def test_latest_requests_replace_former_ones() -> None:
    mix = request_mix.RequestMix()
    for shape in [build_shape(1)] * 8192 + [build_shape(2)] * 40000:
        mix.add(shape)

    parts = dict(mix.list_usual())

    assert parts[build_shape(2)] > 0.95
    assert sum(parts.values()) == pytest.approx(1)


@pytest.mark.slow
def test_the_mix_is_bounded() -> None:
    mix = request_mix.RequestMix()
    for number in range(20000):
        mix.add(build_shape(number))

    assert len(mix.list_usual()) == 32


def test_requests_without_accelerators_are_not_counted() -> None:
    mix = request_mix.RequestMix()

    mix.add(usable_share.build_shape(4, 4096, []))

    assert mix.list_usual() == ()


def test_the_mix_is_the_same_object_until_enough_are_new() -> None:
    mix = request_mix.RequestMix()
    for _ in range(100):
        mix.add(build_shape(1))
    usual = mix.list_usual()

    mix.add(build_shape(2))
    assert mix.list_usual() is usual

    for _ in range(40):
        mix.add(build_shape(2))
    assert mix.list_usual() is not usual
