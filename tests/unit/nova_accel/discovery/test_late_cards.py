# SPDX-License-Identifier: Apache-2.0
"""Cards whose kernel files do not answer: unknown, and nothing waits."""

import errno
import os
import threading
import time
from collections.abc import Iterator

import pytest

from nova_accel import errors
from nova_accel.doctor import checked_host, registry
from nova_accel.host import bounded_calls
from nova_accel.host.sysfs import fs, host_reader
from tests.lab import fakehost
from tests.support.hosts import simulated
from tests.support.hosts.simulated import GPU, OTHER, A, B

# Each waits for the three seconds that a card has.
pytestmark = [pytest.mark.usefixtures("own_rights"), pytest.mark.slow]
#: Files of a card: of the PCI core, of its driver, of its mdev types.
ATTRIBUTES = (
    "vendor",
    "class",
    "numa_node",
    "config",
    "mdev_supported_types/nvidia-222/available_instances",
    "mdev_supported_types/nvidia-222/name",
)
#: The type of the profile that these tests ask for.
FOUR_Q = "nvidia-232"
#: Seconds that a caller may wait for one card, with some for the machine.
SOON_S = 2 * bounded_calls.READ_S


@pytest.fixture(autouse=True)
def healed(kernel: fakehost.Controller) -> Iterator[None]:
    """End what hangs, and wait for the threads that were abandoned."""
    yield
    kernel.heal()
    wait_until_on_time()


def wait_until_on_time() -> None:
    until = time.monotonic() + 10
    while bounded_calls.count_late():
        assert time.monotonic() < until
        time.sleep(0.02)


def path_of(attribute: str, address: str = GPU) -> str:
    return f"bus/pci/devices/{address}/{attribute}"


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_card_is_unknown_until_it_answers(
    kernel: fakehost.Controller, attribute: str
) -> None:
    life = simulated.started(kernel)
    before = life.host.state
    kernel.hang(path_of(attribute), on="read")
    began = time.monotonic()
    state = life.host.refresh()
    assert time.monotonic() - began < SOON_S
    assert state.unknown == {GPU}
    assert {d.address for d in state.devices} == {OTHER, "mtty"}
    assert state.complete
    (problem,) = [p for p in state.problems if p.address == GPU]
    assert "does not answer" in problem.reason
    assert attribute in problem.reason
    began = time.monotonic()
    assert life.host.refresh_changed().unknown == {GPU}
    assert time.monotonic() - began < bounded_calls.READ_S
    kernel.heal()
    wait_until_on_time()
    assert life.host.refresh_changed() == before


@pytest.mark.parametrize("operation", ["read", "open", "list"])
def test_a_card_that_never_answered_hides_no_other(
    kernel: fakehost.Controller, operation: str
) -> None:
    """The service starts while the card hangs."""
    path = path_of("vendor" if operation != "list" else "")
    kernel.hang(path.rstrip("/"), on=operation)
    began = time.monotonic()
    life = simulated.started(kernel)
    assert time.monotonic() - began < SOON_S
    assert life.host.state.unknown == {GPU}
    assert {d.address for d in life.host.state.devices} == {OTHER, "mtty"}
    kernel.heal()
    wait_until_on_time()
    assert not life.host.refresh_changed().unknown


def test_late_cards_together_are_not_waited_for_one_after_the_other(
    kernel: fakehost.Controller,
) -> None:
    for address in (GPU, OTHER):
        kernel.hang(path_of("vendor", address), on="read")
    began = time.monotonic()
    life = simulated.started(kernel)
    assert time.monotonic() - began < SOON_S
    assert life.host.state.unknown == {GPU, OTHER}


def test_one_thread_hangs_for_each_card(
    kernel: fakehost.Controller,
) -> None:
    """However many callers read the card, before it is late and after."""
    results: list[int | str] = []

    def read() -> None:
        files = fs.Files(fs.DiskSource(kernel.root))
        results.append(files.read_text(f"/sys/{path_of('numa_node')}"))

    def read_at_once() -> None:
        threads = [threading.Thread(target=read) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)

    read_at_once()
    before = count_threads()
    kernel.hang(path_of("numa_node"), on="read")
    results.clear()
    read_at_once()
    read_at_once()
    assert results == [errno.ETIMEDOUT] * 40
    assert bounded_calls.count_late() == 1
    # Idle workers are retained; forty threads would hang otherwise.
    assert count_threads() <= before + 1 + bounded_calls._MAX_IDLE


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_spawn_on_a_late_card_fails_and_others_go_on(
    kernel: fakehost.Controller,
) -> None:
    life = simulated.started(kernel)
    kernel.hang(
        path_of(f"mdev_supported_types/{FOUR_Q}/available_instances"),
        on="read",
    )
    began = time.monotonic()
    with pytest.raises(errors.ClaimError):
        life.ensure(
            A, (simulated.asks(simulated.FOUR_Q),), (simulated.slot(),)
        )
    assert life.ensure(
        B,
        (simulated.asks(simulated.FOUR_Q),),
        (simulated.slot(address=OTHER),),
    )
    assert time.monotonic() - began < SOON_S
    assert not life.claims_of(A)


def test_a_server_on_a_late_card_keeps_its_claim(
    kernel: fakehost.Controller,
) -> None:
    life = simulated.started(kernel)
    groups = (simulated.asks(simulated.FOUR_Q),)
    (claim,) = life.ensure(A, groups, (simulated.slot(),))
    kernel.hang(
        path_of("mdev_supported_types/nvidia-222/available_instances"),
        on="read",
    )
    life.host.refresh()
    life.clean_up()
    assert life.claims_of(A) == (claim,)
    # A service that starts now learns of the slot from Nova's database.
    successor = simulated.started(kernel)
    assert successor.restore(A, (simulated.slot(),), groups) == ()
    kernel.heal()
    wait_until_on_time()
    successor.host.refresh_changed()
    (restored,) = successor.restore(A, (simulated.slot(),), groups)
    assert restored.handle == claim.handle
    assert kernel.mdevs().keys() == {claim.handle}


def test_a_delete_on_a_late_card_ends(kernel: fakehost.Controller) -> None:
    """The partition stays owned, and is removed once the card answers."""
    life = simulated.started(kernel)
    groups = (simulated.asks(simulated.FOUR_Q),)
    (claim,) = life.ensure(A, groups, (simulated.slot(),))
    kernel.hang(
        path_of("mdev_supported_types/nvidia-222/available_instances"),
        on="read",
    )
    began = time.monotonic()
    life.release(A, (simulated.slot(),), simulated.stopped)
    assert time.monotonic() - began < SOON_S
    kernel.heal()
    wait_until_on_time()
    life.host.refresh_changed()
    life.clean_up()
    assert not kernel.mdevs()
    assert not life.claims_of(A)
    assert claim.handle not in life.store.made()


def test_a_reader_of_the_whole_host_waits_once(
    kernel: fakehost.Controller,
) -> None:
    """As the commands do, which have no snapshot."""
    kernel.hang(path_of("numa_node"), on="read")
    began = time.monotonic()
    reader = host_reader.HostReader(kernel.root)
    addresses = {str(function.address) for function in reader.functions()}
    assert time.monotonic() - began < SOON_S
    assert OTHER in addresses
    assert GPU in reader.late()


def test_the_doctor_names_the_card(kernel: fakehost.Controller) -> None:
    kernel.hang(path_of("config"), on="read")
    host = checked_host.CheckedHost(host_reader.HostReader(kernel.root))
    began = time.monotonic()
    results = registry.run(registry.list_checks(), host)
    assert time.monotonic() - began < SOON_S
    (presence,) = [r for r in results if r.check.name == "pci.presence"]
    (failure,) = presence.observations
    assert failure.text == f"{GPU} does not answer: a read of it hangs"
