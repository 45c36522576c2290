# SPDX-License-Identifier: Apache-2.0
"""Kernel numbers do not change an Intel FPGA card."""

import json
import pathlib
import random
import re
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import model
from tests.hosts import build, look
from tests.support import examples

HOSTS = ("dfl-n6000", "dfl-older", "dfl-pac")
# Numbers that the kernel assigns: only the order of regions has a meaning.
_PART = re.compile(r"(dfl-fme-region\.)(\d+)")
_FREE = re.compile(
    r"(/region|dfl-fme\.|dfl-port\.|intel-fpga-(?:dev|fme|port)\.)(\d+)"
)


def renumbered(
    name: str, free: list[int], parts: list[int]
) -> build.Description:
    """Return a host as the kernel would show it after another boot."""
    text = (build.HERE / f"{name}.json").read_text()
    text = _FREE.sub(lambda m: f"{m[1]}{free[int(m[2])]}", text)
    text = _PART.sub(lambda m: f"{m[1]}{parts[int(m[2])]}", text)
    description: build.Description = json.loads(text)
    return description


def read(description: build.Description) -> model.HostState:
    with tempfile.TemporaryDirectory() as directory:
        return look.read(build.build(description, pathlib.Path(directory)))


@settings(max_examples=examples.examples(15), deadline=None)
@given(st.sampled_from(HOSTS), st.randoms(use_true_random=False))
def test_kernel_numbers_do_not_change_devices(
    name: str, chance: random.Random
) -> None:
    free = chance.sample(range(10_000), 1000)
    parts = sorted(chance.sample(range(10_000), 1000))
    usual = read(build.load(name))
    assert read(renumbered(name, free, parts)).devices == usual.devices
