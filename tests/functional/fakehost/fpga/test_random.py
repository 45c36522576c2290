# SPDX-License-Identifier: Apache-2.0
"""No region in use is programmed in thousands of random sequences.

Spawns with bitstreams and for functions, deletes, hard reboots, restarts
of the service, cards that fail in every way, operators and guests that
meddle; through the library's own Lifecycle, down to the calls that it
would make of the kernel. The kernel is the simulated one, in the workers'
own processes.

``FPGA_SEQUENCES`` is the number of sequences, ``FPGA_WORKERS`` that of the
processes that share them, and ``FPGA_SEED`` repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_accel.host.execute import privileged
from tests.lab.fakehost import fpga
from tests.support import workers
from tests.support.examples import examples
from tests.support.fpga import cloud as simulated_fpga_cloud
from tests.support.fpga import kernel, lives, simulated

pytestmark = pytest.mark.fakehost

SEQUENCES = int(os.environ.get("FPGA_SEQUENCES", "") or examples(400))
SEED = int(os.environ.get("FPGA_SEED", "20261121"))
WORKERS = int(os.environ.get("FPGA_WORKERS", "2"))
#: Sequences from which on every kind of step is among them.
ENOUGH = 200


def test_no_region_in_use_is_programmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Share the sequences among workers, each with hosts of its own."""
    share = -(-SEQUENCES // WORKERS)
    seeds = range(SEED, SEED + WORKERS)
    for lines in workers.run(lives.__name__, seeds, share, capsys):
        (last,) = [line for line in lines if f" {share} sequences" in line]
        for kind in ("spawned", "programmings", "rebooted"):
            if share < ENOUGH:
                continue
            (number,) = re.findall(rf", (\d+) {kind}", last)
            assert int(number) > share // 10


@contextlib.contextmanager
def cloud(place: Path, shape: int = 0) -> Iterator[simulated_fpga_cloud.Cloud]:
    privileged.run_here()
    spec = lives.SHAPES[shape]
    with kernel.direct(spec, place / "host") as host:
        chance = random.Random(SEED)  # noqa: S311 - no secret
        yield simulated_fpga_cloud.Cloud(host, place, chance)


def spawn(
    fpga_cloud: simulated_fpga_cloud.Cloud, key: simulated_fpga_cloud.Key
) -> simulated_fpga_cloud.Server:
    server = fpga_cloud.draw(key)
    while server.image is None or server.function != simulated.C:
        server = fpga_cloud.draw(key)
    assert fpga_cloud.spawn(server)
    return server


def test_a_programming_under_a_guest_is_found(tmp_path: Path) -> None:
    """A judge that never objects would prove nothing."""
    key = (simulated.SPLIT, 1)
    with cloud(tmp_path) as fpga_cloud:
        spawn(fpga_cloud, key)
        assert fpga_cloud.judge.wrong == []
        number = fpga_cloud.host.program(
            f"dev/{node(fpga_cloud)}", 1, fpga.payload(simulated.B), 1
        )
        assert number == 0
        fpga_cloud.judge.check_log()
        assert any("a guest has" in text for text in fpga_cloud.judge.wrong)
        assert any("runs with" in text for text in fpga_cloud.judge.wrong)


def node(fpga_cloud: simulated_fpga_cloud.Cloud) -> str:
    place = fpga_cloud.host.root / f"sys/bus/pci/devices/{simulated.SPLIT}"
    (path,) = place.glob("fpga_region/region*/dfl-fme.*")
    return path.name


def test_a_wrong_function_is_found(tmp_path: Path) -> None:
    key = (simulated.PAC, 0)
    with cloud(tmp_path) as fpga_cloud:
        attempt = fpga_cloud.judge.begin(key, "server")
        fpga_cloud.judge.handed_over(attempt, simulated.C, most=1)
        assert any("requested" in text for text in fpga_cloud.judge.wrong)


def test_a_faulted_region_handed_over_is_found(tmp_path: Path) -> None:
    key = (simulated.PAC, 0)
    with cloud(tmp_path) as fpga_cloud:
        fpga_cloud.judge.faulted[key] = simulated.NLB0
        spawn(fpga_cloud, key)
        assert any("failed before" in text for text in fpga_cloud.judge.wrong)


def test_a_spawn_on_one_region_heals_no_other(tmp_path: Path) -> None:
    """State that was read before a failure does not clear the fault."""
    with cloud(tmp_path) as fpga_cloud:
        server = fpga_cloud.draw((simulated.SPLIT, 1), "liar")
        while server.image is None:
            server = fpga_cloud.draw((simulated.SPLIT, 1), "liar")
        assert not fpga_cloud.spawn(server)
        address = f"{simulated.SPLIT}/region-1"
        assert address in fpga_cloud.faulted.read()
        spawn(fpga_cloud, (simulated.SPLIT, 0))
        assert address in fpga_cloud.faulted.read()
        assert (simulated.SPLIT, 1) not in fpga_cloud.offered()


def test_a_healed_region_is_offered(tmp_path: Path) -> None:
    """At the next pass, though only the notes have changed."""
    key, address = (simulated.PAC, 0), f"{simulated.PAC}/region-0"
    with cloud(tmp_path) as fpga_cloud:
        server = fpga_cloud.draw(key, "SAME")
        while server.image is None:
            server = fpga_cloud.draw(key, "SAME")
        assert not fpga_cloud.spawn(server)
        assert key not in fpga_cloud.offered()
        fpga_cloud.faulted.heal([address])
        fpga_cloud.pass_by()
        assert key in fpga_cloud.offered()


def test_a_function_that_a_driver_forgets_heals_nothing(
    tmp_path: Path,
) -> None:
    """AMD's driver shows no function after it was unbound."""
    with cloud(tmp_path, 2) as fpga_cloud:
        server = fpga_cloud.draw((simulated.ALVEO, 0), "SAME")
        while server.image is None or server.function == simulated.A:
            server = fpga_cloud.draw((simulated.ALVEO, 0), "SAME")
        assert not fpga_cloud.spawn(server)
        fpga_cloud.libvirt.detach(simulated.USER)
        fpga_cloud.libvirt.give_back(simulated.USER)
        fpga_cloud.host.sync()
        fpga_cloud.pass_by()
        assert f"{simulated.ALVEO}/region-0" in fpga_cloud.faulted.read()
        assert (simulated.ALVEO, 0) not in fpga_cloud.offered()
