# SPDX-License-Identifier: Apache-2.0
"""A driver is not changed while a server holds a device of its kind."""

import dataclasses
import pathlib
import threading
import uuid
from collections.abc import Callable, Collection

import pytest

from nova_accel import errors, model
from nova_accel.cli import registered_readers
from nova_accel.discovery.capture import RecordedDirectory
from nova_accel.doctor.ansible import device_use, roles
from nova_accel.host.state import claims_file, device_notes
from nova_accel.model import domains, providers
from tests.support.hosts import prepared

NODE = providers.ProviderRoot(name="node1", uuid=str(uuid.uuid4()))
SERVER = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"
MDEV = "0f0e6f0a-0000-4000-8000-000000000000"
HOST = prepared.changed({})
VF = "0000:41:00.4"


def claim(device: str) -> model.Claim:
    return model.Claim(
        consumer=SERVER,
        provider=str(uuid.uuid4()),
        device=device,
        profile="L40S-4Q",
        slot="slot-1",
        parent=device,
        handle=str(uuid.uuid4()),
        technology="vgpu",
    )


def publish(
    place: pathlib.Path, *devices: str, occupied: tuple[str, ...] = ()
) -> None:
    claims_file.ClaimsFile(str(place)).write(
        NODE, map(claim, devices), occupied
    )


class Placement:
    """Substitute of the reader; it has reasons to wait, one after another."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = list(reasons)

    def explain_wait(self, root: str, addresses: Collection[str]) -> str:
        assert root == NODE.uuid
        assert set(addresses) == {prepared.QAT}
        return self._reasons.pop(0) if self._reasons else ""


def use_of(
    place: pathlib.Path,
    technology: str,
    *guests: domains.Domain,
    placement: Callable[[], registered_readers.DrainReader] = Placement,
) -> device_use.HeldDevices:
    addresses = roles.list_devices(HOST, technology)
    return device_use.HeldDevices(
        HOST, addresses, str(place), lambda: guests, placement
    )


def guest(
    *functions: str, is_running: bool = True, uuid: str = OTHER
) -> domains.Domain:
    return domains.Domain(
        uuid=uuid,
        name="guest-1",
        is_running=is_running,
        functions=frozenset(functions),
    )


def drained(place: pathlib.Path) -> set[str]:
    return set(device_notes.DrainNotes(str(place)).read())


@pytest.mark.parametrize(
    ("technology", "device"),
    [
        ("nvidia", prepared.L40S),
        ("nvidia", VF),
        ("fpga", f"{prepared.DFL}/region-0"),
    ],
)
def test_a_claim_on_a_device_is_refused(
    tmp_path: pathlib.Path, technology: str, device: str
) -> None:
    publish(tmp_path, device)
    with pytest.raises(device_use.DevicesInUseError) as raised:
        use_of(tmp_path, technology).check()
    assert f"{device}: server {SERVER}" in str(raised.value)


def test_a_guest_of_another_owner_is_refused(tmp_path: pathlib.Path) -> None:
    publish(tmp_path, occupied=(VF,))
    with pytest.raises(device_use.DevicesInUseError, match=f"{VF}: a guest"):
        use_of(tmp_path, "nvidia").check()


def test_devices_of_other_kinds_may_be_held(tmp_path: pathlib.Path) -> None:
    publish(tmp_path, prepared.L40S)
    use_of(tmp_path, "qat").check()


@pytest.mark.parametrize("function", [prepared.T4, VF])
def test_a_guest_of_libvirt_is_refused(
    tmp_path: pathlib.Path, function: str
) -> None:
    use = use_of(tmp_path, "nvidia", guest(function))
    with pytest.raises(device_use.DevicesInUseError, match="guest-1"):
        use.check()


def test_an_mdev_of_a_guest_is_refused(tmp_path: pathlib.Path) -> None:
    host = prepared.changed(
        {
            prepared.at(prepared.T4, MDEV): RecordedDirectory(),
        }
    )
    domain = dataclasses.replace(guest(), mdevs=frozenset({MDEV}))
    for technology, is_refused in (("nvidia", True), ("qat", False)):
        use = device_use.HeldDevices(
            host,
            roles.list_devices(host, technology),
            str(tmp_path),
            lambda: [domain],
            Placement,
        )
        if not is_refused:
            use.check()
            continue
        with pytest.raises(device_use.DevicesInUseError, match=MDEV):
            use.check()


@pytest.mark.parametrize(
    "domain",
    [guest(prepared.QAT), guest(prepared.T4, is_running=False), guest()],
    ids=["other device", "stopped", "no device"],
)
def test_other_guests_may_run(
    tmp_path: pathlib.Path, domain: domains.Domain
) -> None:
    use_of(tmp_path, "nvidia", domain).check()


def test_a_reboot_needs_all_devices_free(tmp_path: pathlib.Path) -> None:
    publish(tmp_path, prepared.QAT)
    with pytest.raises(device_use.DevicesInUseError):
        device_use.HeldDevices(
            HOST, None, str(tmp_path), tuple, Placement
        ).check()


def test_unreadable_claims_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "book.json").write_text("{")
    with pytest.raises(errors.AcceleratorError, match=r"book\.json"):
        use_of(tmp_path, "nvidia").check()


def test_nothing_is_drained_before_nova_is_there(
    tmp_path: pathlib.Path,
) -> None:
    assert use_of(tmp_path, "nvidia").drain(0, print) == ()
    assert list(tmp_path.iterdir()) == []


def test_devices_are_drained_and_offered_again(
    tmp_path: pathlib.Path,
) -> None:
    publish(tmp_path)
    use = use_of(tmp_path, "qat")
    addresses = use.drain(0, print)
    assert set(addresses) == {prepared.QAT} == drained(tmp_path)
    use.undrain(addresses)
    assert drained(tmp_path) == set()


def test_a_drain_of_the_operator_stays(tmp_path: pathlib.Path) -> None:
    publish(tmp_path)
    device_notes.DrainNotes(str(tmp_path)).put(prepared.QAT, "repair")
    use = use_of(tmp_path, "qat")
    use.undrain(use.drain(0, print))
    assert drained(tmp_path) == {prepared.QAT}


def drain(
    place: pathlib.Path, *reasons: str, seconds: float = 9
) -> tuple[tuple[str, ...], list[str]]:
    """Drain an empty device; return addresses and reported lines."""
    publish(place)
    lines: list[str] = []
    use = use_of(place, "qat", placement=lambda: Placement(*reasons))
    return use.drain(seconds, lines.append), lines


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_use, "_POLL_S", 0.01)


@pytest.mark.usefixtures("_fast")
def test_a_drain_waits_for_placement(tmp_path: pathlib.Path) -> None:
    addresses, lines = drain(tmp_path, "it is offered", "it is offered", "b")
    assert addresses == (prepared.QAT,)
    assert lines[1:] == ["waiting: it is offered", "waiting: b"]


def test_a_drain_without_a_wait_reads_no_placement(
    tmp_path: pathlib.Path,
) -> None:
    addresses, _ = drain(tmp_path, "it is offered", seconds=0)
    assert addresses == (prepared.QAT,)


@pytest.mark.usefixtures("_fast")
def test_a_wait_that_takes_too_long_ends_the_drain(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(device_use.DrainTimeoutError, match="it is offered"):
        drain(tmp_path, *["it is offered"] * 999, seconds=0.02)
    assert drained(tmp_path) == set()


def test_nothing_is_drained_without_credentials(
    tmp_path: pathlib.Path,
) -> None:
    publish(tmp_path)
    use = use_of(
        tmp_path, "qat", placement=lambda: registered_readers.open_drains(())
    )
    with pytest.raises(errors.ConfigurationError):
        use.drain(9, print)
    assert drained(tmp_path) == set()


@pytest.mark.usefixtures("_fast")
def test_a_server_that_comes_during_the_wait_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    publish(tmp_path)
    late = threading.Timer(0.05, publish, (tmp_path, prepared.QAT))
    late.start()
    use = use_of(
        tmp_path,
        "qat",
        placement=lambda: Placement(*["it was scheduled"] * 999),
    )
    with pytest.raises(device_use.DevicesInUseError):
        use.drain(9, print)
    late.join()
    assert drained(tmp_path) == set()
