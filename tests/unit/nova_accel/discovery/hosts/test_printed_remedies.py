# SPDX-License-Identifier: Apache-2.0
"""Each correction that a report names can be made, and works.

``inspect`` and ``doctor`` read each host of the tests; each correction in
their texts is made on that host, and its device is offered then.
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Iterator

import pytest

from nova_accel import errors, model
from nova_accel.config import policy, remedy
from nova_accel.config.lines import device_spec
from nova_accel.discovery import plugin, scan, unoffered_devices
from nova_accel.doctor import (
    checked_host,
    host_checks,
    offers,
    registry,
)
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.inventory import printed_remedies
from nova_accel.model import names
from tests.hosts import look, recorded
from tests.support import examples
from tests.support.hosts import remedied_host

HOSTS = (*look.NAMES, *(f"recorded/{name}" for name in recorded.NAMES))
# Words of a correction, which is a remedy then.
CHANGES = re.compile(
    "num_vfs|in the firmware|device_spec|bind |write |load |install |flash "
)
# Corrections whose effect is not in files of a function: of a whole host, of
# the programs on a card, of a module's options, and of a driver that failed.
OTHERS = re.compile(
    "switch the IOMMU on in the firmware"
    "|flash one with more|flash a platform with `xbmgmt"
    "|load its platform's shell"
    "|write `options gim|load gim again|load vfio-pci with disable_denylist=1"
    "|see the kernel's log, or load it again"
)
MODULES = (remedy.LoadModule, remedy.InstallModule)
NO_RULES = policy.DeviceRules()
DRIVERS = plugin.load()
CHECKS = registry.select(registry.list_checks(), (host_checks.Role.COMPUTE,))


@dataclasses.dataclass(frozen=True)
class Report:
    """The texts of ``inspect`` on one host, by the device's address."""

    source: fs.FileSource
    texts: tuple[tuple[str, str], ...]

    def list_ways(self) -> Iterator[tuple[str, tuple[remedy.Remedy, ...]]]:
        """Yield each way to have a device offered, with its address."""
        for address, text in self.texts:
            for steps in printed_remedies.find_alternatives(text):
                yield address, steps


def read_source(name: str, root: pathlib.Path) -> fs.FileSource:
    kind, _, recorded_name = name.rpartition("/")
    if kind:
        return recorded.load(recorded_name)
    return fs.DiskSource(look.make(name, root))


def read_report(
    name: str,
    root: pathlib.Path,
    rules: policy.DeviceRules = NO_RULES,
) -> Report:
    source = read_source(name, root)
    reader = host_reader.HostReader(source=source)
    state = scan.read(reader, DRIVERS, rules)
    rest = unoffered_devices.find_unoffered(reader, state, DRIVERS, rules)
    return Report(
        source,
        (
            *((p.address, p.reason) for p in state.problems),
            *((i.address, i.reason) for i in rest if not i.is_problem),
        ),
    )


def list_offered(state: model.HostState) -> set[str]:
    """Return the addresses of offered devices and of their parts."""
    return {
        address
        for device in state.devices
        if device.counters
        for address in (
            device.address,
            names.card_address(device.address),
            *device.slots,
            *device.members,
        )
    }


def apply(report: Report, steps: tuple[remedy.Remedy, ...]) -> model.HostState:
    host = remedied_host.RemediedHost(report.source, DRIVERS)
    host.apply(steps)
    return scan.read(host.reader, DRIVERS, host.rules)


@pytest.mark.parametrize("name", examples.share(HOSTS))
def test_each_printed_remedy_has_its_device_offered(
    tmp_path: pathlib.Path, name: str
) -> None:
    report = read_report(name, tmp_path)
    failures = []
    for address, steps in report.list_ways():
        if any(isinstance(step, MODULES) for step in steps):
            continue
        state = apply(report, steps)
        if is_like_equal(report, steps):
            assert "unlike" not in look.reasons(state, address)
            continue
        if isinstance(steps[-1], remedy.EnableSriov):
            (further,) = find_further(state, address)
            state = apply(report, (*steps, *further))
        if get_offered_name(address) not in list_offered(state):
            reasons = look.reasons(state, address)
            failures.append((address, steps, reasons))
    assert not failures


@pytest.mark.parametrize("name", examples.share(HOSTS))
def test_no_text_asks_for_a_change_that_is_no_remedy(
    tmp_path: pathlib.Path, name: str
) -> None:
    for address, text in read_report(name, tmp_path).texts:
        rest = text
        for step in printed_remedies.find(text):
            rest = rest.replace(f"write {step}", "").replace(str(step), "")
        assert not CHANGES.search(OTHERS.sub("", rest)), (address, text)


@pytest.mark.parametrize(
    ("name", "cards"),
    [("bound-otherwise", {"0000:56:00.0"}), ("dfl-n6000", set())],
)
def test_sriov_of_the_firmware_is_for_models_that_have_it(
    tmp_path: pathlib.Path, name: str, cards: set[str]
) -> None:
    """The static part of an FPGA has the number of VFs, no setting."""
    ways = read_report(name, tmp_path).list_ways()
    steps = [step for _, steps in ways for step in steps]
    settings = [s for s in steps if isinstance(s, remedy.EnableSriov)]
    assert {step.function for step in settings} == cards


def get_offered_name(address: str) -> str:
    """Return what a remedy of an address offers: its region, or its card."""
    if "/region-" in address:
        return address
    return names.card_address(address)


def find_further(
    state: model.HostState, address: str
) -> list[tuple[remedy.Remedy, ...]]:
    """Return the ways in the reasons of a device that are no setting."""
    return list(
        printed_remedies.find_alternatives(look.reasons(state, address))
    )


@pytest.mark.parametrize("name", examples.share(HOSTS))
def test_no_report_says_to_load_or_install_what_is_there(
    tmp_path: pathlib.Path, name: str
) -> None:
    report = read_report(name, tmp_path)
    for _, steps in report.list_ways():
        for step in steps:
            if isinstance(step, MODULES):
                for place in ("module", "bus/pci/drivers"):
                    path = f"/sys/{place}/{step.module}"
                    assert not remedied_host.try_read(report.source, path), (
                        step
                    )


@pytest.mark.parametrize("name", examples.share(HOSTS))
def test_doctor_names_the_remedies_of_inspect_and_no_others(
    tmp_path: pathlib.Path, name: str
) -> None:
    report = read_report(name, tmp_path)
    host = checked_host.CheckedHost(
        host_reader.HostReader(source=report.source)
    )
    of_doctor = {
        step
        for result in registry.run(CHECKS, host)
        for observation in result.observations
        for step in printed_remedies.find(observation.text)
    }
    of_inspect = {
        step
        for address, steps in report.list_ways()
        if is_function(address, report)
        for step in steps
    }
    assert of_doctor == of_inspect


@pytest.mark.parametrize("name", examples.share(HOSTS))
def test_each_printed_remedy_of_a_check_ends_its_result(
    tmp_path: pathlib.Path, name: str
) -> None:
    """Those of the checks ``offers`` are in texts, see above."""
    source = read_source(name, tmp_path)
    for check, text, steps in list_check_remedies(source):
        host = remedied_host.RemediedHost(source, DRIVERS)
        host.apply(steps)
        again = checked_host.CheckedHost(host.reader)
        (result,) = registry.run((check,), again)
        assert text not in {o.text for o in list_severe(result)}, steps


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("recorded/hgx-h100-switches-on-vfio", {"nv.nvswitch"}),
        ("recorded/mixed-server", {"pci.reset"}),
    ],
)
def test_the_remedies_of_checks_are_found(
    tmp_path: pathlib.Path, name: str, checks: set[str]
) -> None:
    source = read_source(name, tmp_path)
    assert {c.name for c, _, _ in list_check_remedies(source)} == checks


def list_check_remedies(
    source: fs.FileSource,
) -> Iterator[tuple[host_checks.HostCheck, str, tuple[remedy.Remedy, ...]]]:
    """Yield checks of a host, with a severe text and each way to end it."""
    host = checked_host.CheckedHost(host_reader.HostReader(source=source))
    for result in registry.run(CHECKS, host):
        if result.check.find.__module__ == offers.__name__:
            continue
        for observation in list_severe(result):
            for steps in printed_remedies.find_alternatives(
                observation.remedy
            ):
                yield result.check, observation.text, steps


def list_severe(
    result: host_checks.CheckResult,
) -> list[host_checks.Observation]:
    severe = (host_checks.Level.WARN, host_checks.Level.FAIL)
    return [o for o in result.observations if o.level in severe]


def is_like_equal(report: Report, steps: tuple[remedy.Remedy, ...]) -> bool:
    """Return whether a card gets the driver that its equals have.

    It is then as they are, and what its driver makes is not simulated.
    """
    step = steps[0]
    if not isinstance(step, remedy.BindFunction):
        return False
    reader = _reader(report)
    card = reader.function(step.function)
    return (
        card is not None
        and card.physfn is None
        and (card.driver is None or card.is_vfio_bound)
        and any(
            (other.vendor, other.product, other.driver)
            == (card.vendor, card.product, step.driver)
            for other in reader.functions()
        )
    )


def is_function(address: str, report: Report) -> bool:
    """Return whether a problem is of a PCI function."""
    reader = _reader(report)
    return reader.function(names.card_address(address)) is not None


@functools.lru_cache(maxsize=4)
def _reader(report: Report) -> host_reader.HostReader:
    return host_reader.HostReader(source=report.source)


#: A line of an operator with each key that a correction does not change.
WRITTEN = {
    "max_slots": 7,
    "profiles": ["*"],
    "max_instances": {"A40-8Q": 3},
    "sizes": "equal",
    "mig_instances": "static",
    "vgpu_params": "disable_vnc=1,path=/x",
    "services": "sym;asym",
    "blank": "/etc/nova/blank.gbs",
    "scrub": "reset",
    "scrub_command": "/usr/local/sbin/wipe",
}
CHANGED = {"use", "num_vfs", "scrub"}


def is_valid(fields: dict[str, object]) -> bool:
    """Return whether a line of device_spec is valid."""
    try:
        policy.parse_rules((json.dumps(fields),))
    except errors.ConfigurationError:
        return False
    return True


@pytest.mark.slow
def test_a_printed_line_has_all_that_the_operator_wrote(
    tmp_path: pathlib.Path,
) -> None:
    """But for keys that have no effect for its use, which are refused."""
    assert {*WRITTEN, *CHANGED, *device_spec.IDENTITY} == {*device_spec.KEYS}
    rules = policy.parse_rules((json.dumps(WRITTEN),))
    uses = set()
    for number, name in enumerate(HOSTS):
        report = read_report(name, tmp_path / str(number), rules)
        for _, steps in report.list_ways():
            for step in steps:
                if not isinstance(step, remedy.SpecLine):
                    continue
                fields = step.fields
                uses.add(fields.get("use", ""))
                assert is_valid(fields), step
                for key, value in WRITTEN.items():
                    if key not in fields:
                        assert not is_valid({**fields, key: value}), step
                    elif key not in CHANGED:
                        assert fields[key] == value, step
    assert uses >= {"", "passthrough", "vf"}
