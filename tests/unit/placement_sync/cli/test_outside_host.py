# SPDX-License-Identifier: Apache-2.0
"""OutsideHost builds the same tree as nova-compute."""

import os
import pathlib
import socket
import uuid

import pytest

from nova_accel import errors
from nova_accel.config import policy
from nova_accel.discovery import change_detection, note_stores
from nova_accel.host.state import claims_file, device_notes
from nova_accel.host.sysfs import fs
from nova_accel.model import names, providers
from placement_sync.cli import outside_host
from tests.hosts import look
from tests.lab import fakehost
from tests.support.hosts import simulated
from virt_hooks.spawn import host_access, lifecycle

ROOT = simulated.ROOT
RULES = policy.DeviceRules()


@pytest.fixture
def life(
    kernel: fakehost.Controller, tmp_path: pathlib.Path
) -> lifecycle.Lifecycle:
    """Return a service that publishes its claims."""
    access = host_access.HostAccess(
        claims_file=claims_file.ClaimsFile(str(tmp_path))
    )
    return simulated.started(kernel, access=access)


def outside(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    state_dir: pathlib.Path,
) -> outside_host.OutsideHost:
    """Return the host of a nova-compute, as another process reads it."""
    return outside_host.OutsideHost(
        change_detection.ChangeDetector(
            fs.DiskSource(kernel.root),
            life.drivers,
            life.rules,
            stores=note_stores.NoteStores(
                faulted=device_notes.FaultNotes(str(state_dir)),
                drained=device_notes.DrainNotes(str(state_dir)),
            ),
        ),
        life.rules,
        claims_file.ClaimsFile(str(state_dir)),
    )


def assert_same_tree(
    life: lifecycle.Lifecycle, seen: outside_host.OutsideHost
) -> None:
    life.host.refresh()
    assert seen.read_view(ROOT).tree == life.tree(outside_host.OWNER_TRAITS)


def test_both_build_the_same_tree(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    tmp_path: pathlib.Path,
) -> None:
    seen = outside(kernel, life, tmp_path)
    life.clean_up()
    assert_same_tree(life, seen)
    slots = (simulated.slot(0), simulated.slot(1))
    life.ensure(simulated.A, (simulated.asks(simulated.FOUR_Q, 2),), slots)
    assert_same_tree(life, seen)
    life.ensure(
        simulated.B,
        (simulated.asks(simulated.MTTY),),
        (simulated.slot(0, "mtty"),),
    )
    assert_same_tree(life, seen)
    life.release(simulated.A, slots, simulated.stopped)
    assert_same_tree(life, seen)
    assert seen.read_view(ROOT).claims != ()


def test_mdevs_of_the_library_are_claimed_without_a_claims_file(
    kernel: fakehost.Controller,
    tmp_path: pathlib.Path,
) -> None:
    life = simulated.started(kernel)
    seen = outside(kernel, life, tmp_path)
    life.ensure(
        simulated.A, (simulated.asks(simulated.FOUR_Q),), (simulated.slot(),)
    )
    assert_same_tree(life, seen)
    (claim,) = seen.read_view(ROOT).claims
    assert claim.consumer == "" and claim.slot == "slot-0"


def test_a_claims_file_of_another_node_is_ignored(
    kernel: fakehost.Controller,
    life: lifecycle.Lifecycle,
    tmp_path: pathlib.Path,
) -> None:
    seen = outside(kernel, life, tmp_path)
    life.clean_up()
    root = providers.ProviderRoot(name="other", uuid=str(uuid.uuid4()))
    own = names.provider_uuid(root.uuid, simulated.GPU)
    assert seen.read_view(root).tree.node(own) is not None
    assert seen.read_view(root).claims == ()


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99}'])
def test_a_malformed_claims_file_stops_the_pass(
    tmp_path: pathlib.Path, text: str
) -> None:
    (tmp_path / "book.json").write_text(text)
    root = look.make("t4-mdev", tmp_path / "host")
    seen = outside_host.OutsideHost(
        change_detection.ChangeDetector(
            fs.DiskSource(root), look.DRIVERS, RULES
        ),
        RULES,
        claims_file.ClaimsFile(str(tmp_path)),
    )
    with pytest.raises(errors.AcceleratorError, match=r"book\.json"):
        seen.read_view(ROOT)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_claims_file_stops_the_pass(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "book.json").write_text("{}")
    (tmp_path / "book.json").chmod(0)
    file = claims_file.ClaimsFile(str(tmp_path))
    seen = outside_host.OutsideHost(
        change_detection.ChangeDetector(fs.DiskSource(tmp_path), {}, RULES),
        RULES,
        file,
    )
    with pytest.raises(errors.UnreadableError, match="EACCES"):
        seen.read_claims()


# -- the node's name and uuid ----------------------------------------------


@pytest.mark.parametrize(
    "name, canonical, expected",
    [
        ("node1.example.org", "other", "node1.example.org"),
        ("localhost", "node1.example.org", "localhost"),
        ("node1", "node1.example.org", "node1.example.org"),
        ("node1", "localhost.localdomain", "node1"),
        ("node1", "", "node1"),
        ("node1", None, "node1"),
    ],
)
def test_the_host_name_is_that_of_libvirt(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    canonical: str | None,
    expected: str,
) -> None:
    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        if canonical is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(2, 1, 6, canonical, ("192.0.2.1", 0))]

    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert outside_host.read_host_name() == expected


def test_the_first_uuid_is_used(tmp_path: pathlib.Path) -> None:
    places = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert outside_host.read_node_uuid(places) is None
    for name, number in (("b", 2), ("c", 3)):
        (tmp_path / name).mkdir()
        own = uuid.UUID(int=number)
        (tmp_path / name / "compute_id").write_text(f" {own}\n")
    assert outside_host.read_node_uuid(places) == str(uuid.UUID(int=2))


def test_a_file_without_a_uuid_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "compute_id").write_text("no uuid")
    with pytest.raises(errors.MalformedError, match="compute_id"):
        outside_host.read_node_uuid([str(tmp_path)])
    (tmp_path / "compute_id").unlink()
    (tmp_path / "compute_id").mkdir()
    with pytest.raises(errors.UnreadableError, match="compute_id"):
        outside_host.read_node_uuid([str(tmp_path)])
