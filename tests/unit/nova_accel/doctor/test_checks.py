# SPDX-License-Identifier: Apache-2.0
"""Each check is ok on a good host, and not on a host with one change."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from nova_accel import errors
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.doctor.host_checks import Level, Role
from nova_accel.host import nvml_gpus
from nova_accel.host.state import notes
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes, removal_changes

CHECKS = (*registry.list_checks(), *registry.list_cloud_checks())
IN_USE = registry.select(CHECKS, (Role.COMPUTE, Role.SCHEDULER, Role.EVERY))
# They repeat each reason of ``inspect``: an offered card is one without any
# obstacle, whatever other check names it, too.
OFFERS = {
    check.name
    for check in IN_USE
    if check.name.endswith(".offers")
    or check.name in ("nv.manager", "amd.driver")
}
REMOVAL = registry.select(CHECKS, (Role.REMOVAL,))


def levels(
    host: checked_host.CheckedHost, checks: Iterable[host_checks.HostCheck]
) -> dict[str, Level]:
    """Return the levels of all checks but ok and n/a, by name."""
    return {
        result.check.name: result.level
        for result in registry.run(checks, host)
        if result.level not in (Level.OK, Level.ABSENT)
    }


@functools.cache
def read_levels(change: tuple[tuple[str, Any], ...]) -> dict[str, Level]:
    """Return the levels on the prepared host with a change."""
    return levels(prepared.changed(dict(change)), IN_USE)


def test_there_are_many_checks_with_one_name_each() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names) >= 90


def test_each_check_has_a_case() -> None:
    assert changes.CASES.keys() == {check.name for check in IN_USE}
    assert removal_changes.CASES.keys() == {check.name for check in REMOVAL}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_explains_itself(check: host_checks.HostCheck) -> None:
    assert check.title and check.why and check.remedy


def test_each_check_is_ok_on_the_prepared_host() -> None:
    assert levels(prepared.changed({}), IN_USE) == {}


@pytest.mark.parametrize("odd", ["9" * 5000, "?", "0-", "0x"])
def test_no_check_fails_for_texts_of_another_form(odd: str) -> None:
    change: prepared.Change = {
        path: odd
        for path, record in prepared.records().items()
        if type(record) is str
        and not path.endswith(("/vendor", "/device", "/class"))
    }
    conf = {changes.NOVA_CONF: f"[libvirt]\nnum_pcie_ports = {odd}\n"}
    results = registry.run(IN_USE, prepared.changed({**change, **conf}))
    texts = [o.text for result in results for o in result.observations]
    assert not [text for text in texts if "check failed" in text]


@pytest.mark.parametrize("name", changes.CASES)
def test_a_change_is_seen_by_its_check_only(name: str) -> None:
    case = changes.CASES[name]
    before = read_levels(tuple(sorted(case.before.items())))
    host = prepared.changed(
        case.before | case.change,
        case.gpus,
        packages=case.packages,
        unwrapped=case.unwrapped,
    )
    after = levels(host, IN_USE)
    assert name not in before
    assert after[name] is case.level
    others = before.keys() | {name, *OFFERS}
    assert after.keys() <= others, after.keys() - others


@pytest.mark.parametrize(
    "lines",
    [
        'device_spec = {"address": "65:00.0"}',
        'device_spec = {"address": "*:41:00.4"}',
        'device_spec = {"vendor_id": "8086", "product_id": "4941"}',
        'device_spec = \'{"vendor_id": "10de"}\'',
        'device_spec: {"vendor_id": "10de"}',
        'device_spec = {"vendor_id":\n  "10de"}',
        'passthrough_whitelist = {"vendor_id": "10de"}',
        '[DEFAULT]\npci_passthrough_whitelist = {"vendor_id": "10de"}',
    ],
)
def test_each_form_of_nova_s_own_line_is_seen(lines: str) -> None:
    change = changes.conf("[libvirt]", f"[pci]\n{lines}\n[libvirt]")
    assert levels(prepared.changed(change), IN_USE) == {
        "nova.pci-spec": Level.FAIL
    }


@pytest.mark.parametrize(
    ("use", "lines"),
    [
        ("off", '{"address": "65:00.0"}'),
        ("off", '{"vendor_id": "10de", "product_id": "2236"}'),
        ("auto", '{"vendor_id": "15b3", "product_id": "101e"}'),
        ("auto", '{"address": "17:00.*", "physical_network": "physnet1"}'),
    ],
)
def test_a_device_that_is_left_to_nova_is_nova_s(use: str, lines: str) -> None:
    rule = f'{{"address": "{prepared.GPU}", "use": "{use}"}}'
    change = changes.conf(
        "[nova_accel]",
        f"[pci]\ndevice_spec = {lines}\n[nova_accel]\ndevice_spec = {rule}",
    )
    assert levels(prepared.changed(change), IN_USE) == {}


def test_cards_that_are_left_to_nova_may_have_nova_s_types() -> None:
    change = changes.conf(
        "[nova_accel]",
        "[devices]\nenabled_mdev_types = nvidia-9\n[nova_accel]\n"
        'device_spec = {"address": "*", "use": "off"}',
    )
    assert levels(prepared.changed(change), IN_USE) == {}


def test_the_old_name_of_nova_s_types_is_seen() -> None:
    change = changes.conf(
        "[libvirt]", "[devices]\nenabled_vgpu_types = nvidia-232\n[libvirt]"
    )
    assert levels(prepared.changed(change), IN_USE) == {
        "nova.mdev-types": Level.FAIL
    }


@pytest.mark.parametrize("gpus", changes.GOOD_ANSWERS)
def test_good_answers_of_nvml_are_ok(
    gpus: Mapping[str, nvml_gpus.NvmlGpu],
) -> None:
    assert levels(prepared.changed({}, gpus), IN_USE) == {}


def test_a_host_without_vgpus_needs_no_vgpu_service() -> None:
    """The unit may be installed with a driver for passthrough."""
    change: prepared.Change = {
        "/sys/module/nvidia_vgpu_vfio": None,
        f"{prepared.SERVICES}/nvidia-vgpu-mgr.service": None,
    }
    assert "nv.vgpu-mgr" not in levels(prepared.changed(change), IN_USE)


def test_a_definition_of_mdevctl_without_autostart_is_no_note() -> None:
    path = next(iter(changes.CASES["svc.mdevctl"].change))
    change: prepared.Change = {
        path: '{"mdev_type": "nvidia-232", "start": "manual"}'
    }
    assert "svc.mdevctl" not in levels(prepared.changed(change), IN_USE)


@pytest.mark.parametrize(
    ("text", "module", "mode"),
    [
        ("FABRIC_MODE = 0\n", True, "FABRIC_MODE=2"),
        ("FABRIC_MODE=0\n", None, "FABRIC_MODE=1"),
        ("LOG_LEVEL=4\n", None, "FABRIC_MODE=1"),
    ],
)
def test_the_mode_of_the_fabric_is_that_for_the_guests(
    text: str, module: bool | None, mode: str
) -> None:
    change: prepared.Change = {
        "/usr/share/nvidia/nvswitch/fabricmanager.cfg": text
    }
    if module is None:
        change["/sys/module/nvidia_vgpu_vfio"] = None
    checks = registry.select(CHECKS, (), names=["nv.fabric-mode"])
    (result,) = registry.run(checks, prepared.changed(change))
    (observation,) = result.observations
    assert observation.level is Level.WARN
    assert mode in observation.remedy


@pytest.mark.parametrize("product", ["2342", "2345", "2348", "2941", "31c2"])
def test_a_coherent_gpu_under_vfio_pci_is_seen(product: str) -> None:
    change = changes.ids(prepared.GPU, "10de", product)
    seen = levels(prepared.changed(change), IN_USE)
    assert seen["nv.offers"] is Level.WARN


@pytest.mark.parametrize("flag", ["acpi-generic-initiator", "iommufd"])
def test_a_capability_of_qemu_proves_more_than_versions(flag: str) -> None:
    """libvirt lists it where both have it, as EL's older versions may."""
    change = changes.ids(prepared.GPU, "10de", "2941") | {
        f"{changes.LIBRARIES}/libvirt.so.0": changes.LINK(
            "libvirt.so.0.10000.0"
        ),
        prepared.CAPABILITIES: "  <version>8002002</version>\n",
    }
    words = {"acpi-generic-initiator": "NUMA nodes", "iommufd": "by IOMMUFD"}
    assert find_words(words.values(), change) == set(words.values())
    change[prepared.CAPABILITIES] = (
        f"  <flag name='{flag}'/>\n  <version>8002002</version>\n"
    )
    assert words[flag] not in find_words(words.values(), change)


def find_words(words: Iterable[str], change: prepared.Change) -> set[str]:
    """Return the words that are in both checks of versions."""
    names = ["host.libvirt", "host.qemu"]
    checks = registry.select(CHECKS, (), names=names)
    texts = [
        " ".join(o.text for o in result.observations)
        for result in registry.run(checks, prepared.changed(change))
    ]
    return {word for word in words if all(word in text for text in texts)}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_boot_display_that_is_given_away_is_no_note(is_named: bool) -> None:
    change: prepared.Change = {
        prepared.at(prepared.GPU, "boot_vga"): "1\n",
    }
    if is_named:
        line = f'{{"address": "{prepared.GPU}", "use": "passthrough"}}'
        change |= changes.conf(
            "[nova_accel]", f"[nova_accel]\ndevice_spec = {line}"
        )
    seen = levels(prepared.changed(change), IN_USE)
    assert ("nv.offers" in seen) != is_named


@pytest.mark.parametrize(
    "change",
    [
        {
            "/etc/default/grub": 'GRUB_CMDLINE_LINUX="intel_iommu=off"\n',
            "/etc/default/grub.d/nova-accel.cfg": (
                'GRUB_CMDLINE_LINUX_REMOVED="intel_iommu=off iommu=off"\n'
                'GRUB_CMDLINE_LINUX="$_words intel_iommu=on iommu=pt"\n'
            ),
        },
        {
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": (
                "# nova-accel nvidia_fabric_manager: FABRIC_MODE=0\n"
                "FABRIC_MODE=1\n"
            )
        },
    ],
    ids=["grub", "fabric"],
)
def test_the_files_of_roles_are_ok(change: prepared.Change) -> None:
    assert levels(prepared.changed(change), IN_USE) == {}


@pytest.mark.parametrize(
    ("change", "is_missing"),
    [
        ({"sriov_numvfs": "0\n"}, True),
        ({"sriov_numvfs": "2\n"}, False),
        ({"sriov_numvfs": "0\n", "sriov_totalvfs": "0\n"}, False),
    ],
    ids=["no-vfs", "vfs", "no-sr-iov"],
)
def test_cleared_bars_of_vfs_are_missing(
    change: Mapping[str, str], is_missing: bool
) -> None:
    """Linux 6.1 clears their lines if it has no room for them."""
    lines = [prepared.BAR, *[prepared.NO_BAR] * 12]
    files = {**change, "resource": "\n".join(lines)}
    host = prepared.changed(
        changes.no_vfs(prepared.L40S)
        | {prepared.at(prepared.L40S, name): files[name] for name in files}
    )
    assert ("pci.vf-bars" in levels(host, IN_USE)) == is_missing


def test_a_module_that_lockdown_refuses_is_seen() -> None:
    change: prepared.Change = {
        prepared.SECURE_BOOT: None,
        "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        f"{prepared.MODULES}/extra/xocl.ko": "",
    }
    seen = levels(prepared.changed(change), IN_USE)
    assert seen == {"drv.secure-boot": Level.WARN, "drv.lockdown": Level.NOTE}


@pytest.mark.parametrize(
    "path",
    [
        "/run/.containerenv",
        "/.dockerenv",
        "/run/systemd/container",
        "/run/host/container-manager",
    ],
)
def test_the_file_of_each_manager_shows_a_container(path: str) -> None:
    change = changes.container("/dev/vfio")
    del change["/run/.containerenv"]
    seen = levels(prepared.changed(change | {path: ""}), IN_USE)
    assert seen["container.vfio"] is Level.FAIL


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("faulted", "nova-accel heal"),
        ("drained", "nova-accel undrain"),
        ("scrubbing", ""),
        ("unreleased", ""),
    ],
)
def test_notes_are_named_by_their_devices(name: str, command: str) -> None:
    region = f"{prepared.ALVEO}/region-0"
    change: prepared.Change = {
        f"{changes.STATE}/{name}/{file}": ""
        for file in (
            notes.file_name(region),
            notes.file_name(prepared.GPU),
            ".0123456789abcdef",
        )
    }
    checks = registry.select(CHECKS, (), names=[f"state.{name}"])
    (result,) = registry.run(checks, prepared.changed(change))
    (observation,) = result.observations
    text = observation.text.partition(": ")[2]
    assert text == f"{prepared.GPU}, {region}"
    assert observation.remedy.endswith(
        f"{command} {prepared.GPU} {region}" if command else ""
    )


def test_each_check_is_ok_after_a_removal() -> None:
    assert levels(prepared.changed(removal_changes.REMOVED), REMOVAL) == {}


@pytest.mark.parametrize("name", removal_changes.CASES)
def test_a_rest_is_seen_by_its_check_only(name: str) -> None:
    case = removal_changes.CASES[name]
    host = prepared.changed(removal_changes.REMOVED | case.change)
    has_state = any(path.startswith(changes.STATE) for path in case.change)
    rest = {"remove.state": Level.NOTE} if has_state else {}
    assert levels(host, REMOVAL) == rest | {name: case.level}


@pytest.mark.parametrize("name", changes.CASES)
def test_an_unreadable_file_is_no_failure(name: str) -> None:
    """The files that prove a failure are unreadable in turn."""
    case = changes.CASES[name]
    change = case.before | case.change
    host = prepared.changed(change, case.gpus)
    (check,) = [check for check in IN_USE if check.name == name]
    (result,) = registry.run([check], host)
    paths = {path for paths in result.readings for path, _ in paths}
    for path in paths:
        blocked = prepared.changed(change, case.gpus, real_path(host, path))
        (again,) = registry.run([check], blocked)
        assert again.level is not Level.FAIL, path


def real_path(host: checked_host.CheckedHost, path: str) -> str:
    """Return a path without links; its first parent if that is absent."""
    parent, _, name = path.rpartition("/")
    try:
        return f"{host.reader.files.resolve(parent)}/{name}"
    except errors.UnreadableError:
        return real_path(host, parent)
