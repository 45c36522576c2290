# SPDX-License-Identifier: Apache-2.0
"""A pass isolates the failure of each driver."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.conformance import template
from nova_accel.discovery import plugin, scan
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import tree_builder
from tests.hosts import look
from tests.support import strategies
from tests.support.hosts.shapes import plain_device

T4 = "0000:3b:00.0"


class Failing(template.TemplateDriver):
    """Describes one device, then breaks."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterator[model.Device | model.Problem]:
        if T4 in card.card_names:
            yield plain_device("first")
        raise self.error


class Greedy(template.TemplateDriver):
    """Yields any objects for a card, also those described by others."""

    def __init__(self, *devices: object) -> None:
        self.devices = devices

    def describe(
        self,
        card: host_reader.HostReader,
        rules: policy.DeviceRules,
        taken: frozenset[str],
    ) -> Iterable[model.Device | model.Problem]:
        if T4 not in card.card_names:
            return ()
        return self.devices  # type: ignore[return-value]


def read(
    root: pathlib.Path, drivers: Mapping[str, plugin.Driver]
) -> model.HostState:
    return scan.read(
        host_reader.HostReader(root), drivers, policy.DeviceRules()
    )


@pytest.mark.parametrize(
    "error",
    [
        errors.UnreadableError("/sys/x", 5),
        errors.MalformedError("id", "x", "y"),
        KeyError("vendor"),
        ZeroDivisionError(),
    ],
)
def test_a_failing_driver_hides_no_other(
    tmp_path: pathlib.Path, error: Exception
) -> None:
    root = look.make("t4-mdev", tmp_path)
    alone = look.read(root)
    state = read(root, {"bad": Failing(error), **look.DRIVERS})
    addresses = [d.address for d in state.devices]
    assert addresses == [*(d.address for d in alone.devices), "first"]
    (problem,) = state.problems
    assert problem.where == "driver bad"
    assert str(error) in problem.reason or repr(error) in problem.reason


def test_the_first_driver_of_a_device_wins(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    state = read(root, {**look.DRIVERS, "late": Greedy(plain_device(T4))})
    assert look.device(state, T4).plugin == "nvidia_mdev"
    assert "driver late" in look.reasons(state, T4)


@pytest.mark.parametrize("device", [None, "0000:3b:00.0", {}])
def test_a_result_that_is_no_device_is_a_problem_of_its_driver(
    tmp_path: pathlib.Path, device: object
) -> None:
    root = look.make("t4-mdev", tmp_path)
    state = read(root, {"odd": Greedy(device), **look.DRIVERS})
    assert len(state.devices) == 2
    assert [p.where for p in state.problems] == ["driver odd"]


@pytest.mark.parametrize("name", look.NAMES)
def test_a_card_alone_is_described_as_among_all(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = look.make(name, tmp_path)
    rules = policy.DeviceRules()
    host_scan = scan.read_host(
        host_reader.HostReader(root), look.DRIVERS, rules
    )
    for device in host_scan.state.devices:
        reader = host_reader.HostReader(root)
        card = reader.card_of(device.parent or device.address)
        own = {device.plugin: look.DRIVERS[device.plugin]}
        for drivers in (look.DRIVERS, own):
            state = scan.read_host(card, drivers, rules, host_scan).state
            assert state.device(device.address) == device


def test_a_device_that_is_off_is_not_described(tmp_path: pathlib.Path) -> None:
    root = look.make("t4-mdev", tmp_path)
    off = [f'{{"address": "{T4}", "use": "off"}}']
    state = look.read(root, off)
    assert [d.address for d in state.devices] == ["0000:af:00.0"]
    assert state.problems == ()
    result = scan.read(
        host_reader.HostReader(root),
        {"greedy": Greedy(plain_device(T4))},
        policy.parse_rules(off),
    )
    assert result.devices == ()


def test_an_unreadable_device_is_unknown_not_absent(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("broken", tmp_path))
    assert "0000:12:00.0" in state.unknown
    assert "0000:13:00.0" in state.unknown
    assert not state.unknown & {d.address for d in state.devices}
    assert look.reasons(state, "0000:12:00.0")


@pytest.mark.parametrize("name", look.NAMES)
def test_a_pass_is_deterministic_and_consistent(
    tmp_path: pathlib.Path, name: str
) -> None:
    root = look.make(name, tmp_path)
    first, second = look.read(root), look.read(root)
    assert first == second
    assert list(first.problems) == sorted(
        set(first.problems), key=lambda p: (p.where, p.reason)
    )
    for device in first.devices:
        if not device.counters:  # described, and not offered
            assert not any(p.available for p in device.profiles)
            continue
        for profile in device.profiles:
            assert set(profile.charges) <= set(device.counters)
            # A card that can make nothing now counts nothing.
            assert not profile.available or all(
                amount <= device.counters[counter]
                for counter, amount in profile.charges.items()
            )
        slots = device.counters[device.resource_class]
        assert len(device.partitions) <= slots <= len(device.slots)
    tree = tree_builder.build_tree(
        strategies.ROOT, first, policy.DeviceRules()
    )
    assert len(tree.nodes) == len(first.devices)


def test_a_host_without_accelerators_is_no_error(
    tmp_path: pathlib.Path,
) -> None:
    state = look.read(look.make("nothing", tmp_path))
    assert state == model.HostState()


def test_a_directory_without_anything_is_an_empty_host(
    tmp_path: pathlib.Path,
) -> None:
    assert look.read(tmp_path) == model.HostState()


def test_without_sysfs_no_device_is_known_to_be_absent(
    tmp_path: pathlib.Path,
) -> None:
    """A container that lacks one has the empty directory."""
    (tmp_path / "sys").mkdir()
    state = look.read(tmp_path)
    assert not state.complete
    assert "ENOENT" in look.reasons(state, "driver pci_passthrough")
    (tmp_path / "sys/class").mkdir()
    assert look.read(tmp_path) == model.HostState()


def test_a_bus_that_cant_be_listed_fails_each_driver_that_needs_it(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").write_text("no directory\n")
    state = look.read(tmp_path)
    assert state.devices == ()
    assert "ENOTDIR" in look.reasons(state, "driver pci_passthrough")
