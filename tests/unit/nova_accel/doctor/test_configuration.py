# SPDX-License-Identifier: Apache-2.0
"""The doctor prints the errors of nova.conf at which nova-compute ends."""

import importlib.metadata
import json
import pathlib

import pytest
from oslo_config import cfg

from nova_accel import errors
from nova_accel.cli import commands
from nova_accel.config import conf_options
from nova_accel.discovery import plugin, service_start
from nova_accel.doctor import registry
from nova_accel.doctor.host_checks import Level
from nova_accel.doctor.sources import misspellings
from nova_accel.host.state import notes
from nova_accel.vendors import mdev
from tests.hosts import look
from tests.support import entry_points
from tests.support.hosts import prepared
from tests.unit.nova_accel.doctor import changes, removal_changes
from tests.unit.nova_accel.doctor.test_checks import IN_USE, levels

Output = pytest.CaptureFixture[str]
ACTIVATIONS = (
    "[DEFAULT]\ncompute_driver = accel.AccelLibvirtDriver\n",
    "[DEFAULT]\nconfig_source = accel\n[accel]\ndriver = nova_accel\n",
    "[nova_accel]\nsync_interval = 30\n",
)


class CountedDriver(mdev.MdevDriver):
    """Driver that counts how often it is loaded."""

    name = "counted"
    loads = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).loads += 1


def test_the_drivers_of_a_host_are_loaded_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = importlib.metadata.EntryPoint(
        CountedDriver.name, f"{__name__}:CountedDriver", plugin.GROUP
    )
    entry_points.install(monkeypatch, tmp_path, [point])
    monkeypatch.setattr(CountedDriver, "loads", 0)
    registry.run(registry.list_checks(), prepared.changed({}))
    assert CountedDriver.loads == 1


@pytest.fixture
def nova_conf(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "other.conf"


def run(*arguments: str) -> int:
    return commands.main(["doctor", *arguments])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("sync_interval = 60s", "nova.settings"),
        ("vgpu_sizes = mix", "nova.settings"),
        ("state_dir = accel", "nova.settings"),
        ("drivers = nvida", "nova.settings"),
        ("device_spec = 41:00.0", "nova.device-spec"),
    ],
)
def test_an_error_of_nova_compute_is_a_failure(
    nova_conf: pathlib.Path, capsys: Output, line: str, name: str
) -> None:
    nova_conf.write_text(f"[nova_accel]\n{line}\n")
    options = cfg.ConfigOpts()
    options([], default_config_files=[str(nova_conf)], default_config_dirs=[])
    with pytest.raises(errors.ConfigurationError) as caught:
        service_start.load(options)
    assert run("--only", "nova", "--config-file", str(nova_conf)) == 2
    out = capsys.readouterr().out
    assert f"FAIL    {name}: {caught.value}\n" in out
    assert f"= [nova_accel] {line}\n" in out


@pytest.mark.parametrize(
    "line", ["sync_interval = 60s", "device_spec = 1", "drivers = nvida"]
)
def test_an_error_of_a_captured_host_has_its_path(
    capsys: Output, tmp_path: pathlib.Path, line: str
) -> None:
    root = look.make("nothing", tmp_path / "host")
    path = root / "etc/nova/nova.conf"
    path.parent.mkdir(parents=True)
    path.write_text(f"[nova_accel]\n{line}\n[database]\nconnection = x\n")
    assert run("--only", "nova", "--root", str(root)) == 2
    text = f"/etc/nova/nova.conf [nova_accel] {line}: "
    assert f": {text}" in capsys.readouterr().out


def test_a_misspelt_source_is_a_failure(
    nova_conf: pathlib.Path, capsys: Output
) -> None:
    nova_conf.write_text(
        "[DEFAULT]\nconfig_source = accel\n[accel]\ndriver = nova_acel\n"
    )
    assert run("--only", "nova", "--config-file", str(nova_conf)) == 2
    (line,) = (
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("FAIL    nova.driver")
    )
    assert "found 'nova_acel'; accelerators are not offered" in line


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("[devices]\nenabled_mdev_types = nvidia-232\n", "nova.mdev-types"),
        ('[pci]\ndevice_spec = {"vendor_id": "10de"}\n', "nova.pci-spec"),
    ],
)
def test_a_conflict_is_seen_by_each_activation(
    activation: str, lines: str, name: str
) -> None:
    host = prepared.changed({changes.NOVA_CONF: activation + lines})
    assert levels(host, IN_USE)[name] is Level.FAIL


_ALIAS = '{"name": "t4", "vendor_id": "10DE", "product_id": "1eb8"}'
_OWN = json.dumps({"vendor_id": "10de", "product_id": "1eb8"})


@pytest.mark.parametrize(
    ("lines", "is_idle"),
    [
        (f"alias = {_ALIAS}", True),
        (f"[DEFAULT]\npci_alias = {_ALIAS}", True),
        ('alias = {"name": "t4", "resource_class": "GPU"}', False),
        ("alias = {", False),
        ('alias = {"name": "x", "vendor_id": 1, "product_id": 2}', False),
        # Of a model whose other cards are Nova's: pci-spec reports the line.
        (f"alias = {_ALIAS}\ndevice_spec = {_OWN}", False),
    ],
)
def test_an_alias_without_a_device_is_seen(lines: str, is_idle: bool) -> None:
    text = f"[nova_accel]\nsync_interval = 1\n[pci]\n{lines}\n"
    host = prepared.changed({changes.NOVA_CONF: text})
    assert ("nova.pci-alias" in levels(host, IN_USE)) is is_idle


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("[mdev_nvidia-232]\ndevice_addresses = 0000:99:00.0\n", False),
        (f"[mdev_nvidia-232]\ndevice_addresses = {prepared.T4}\n", True),
        ("", True),
    ],
)
def test_nova_uses_a_type_on_its_addresses(lines: str, refused: bool) -> None:
    text = f"[devices]\nenabled_mdev_types = nvidia-232\n{lines}"
    host = prepared.changed(
        {changes.NOVA_CONF: "[nova_accel]\nsync_interval = 1\n" + text}
    )
    assert ("nova.mdev-types" in levels(host, IN_USE)) is refused


def test_a_type_of_a_parent_off_the_pci_bus_is_refused(
    tmp_path: pathlib.Path, capsys: Output, nova_conf: pathlib.Path
) -> None:
    root = look.make("mtty", tmp_path / "host")
    nova_conf.write_text(
        f"{ACTIVATIONS[0]}[devices]\nenabled_mdev_types = mtty-2\n"
    )
    words = ("--root", str(root), "--config-file", str(nova_conf))
    assert run("--only", "nova", *words) == 2
    text = f"{service_start.MDEV_TYPES} = mtty-2: names mtty, which"
    assert text in capsys.readouterr().out


def test_the_scheduler_s_checks_read_the_named_file(
    nova_conf: pathlib.Path, capsys: Output
) -> None:
    nova_conf.write_text("[filter_scheduler]\nenabled_filters = A\n")
    assert run("--scheduler", "--config-file", str(nova_conf)) == 2
    assert "FAIL    sched.enabled" in capsys.readouterr().out


def test_a_removal_reads_the_state_of_the_named_file(
    nova_conf: pathlib.Path, capsys: Output, tmp_path: pathlib.Path
) -> None:
    state = tmp_path / "state"
    (state / "drained").mkdir(parents=True)
    (state / "book.json").write_text(json.dumps(removal_changes.CLAIMS))
    (state / "drained" / notes.file_name(prepared.GPU)).write_text(
        json.dumps(removal_changes.LEFT)
    )
    nova_conf.write_text(f"[nova_accel]\nstate_dir = {state}\n")
    assert run("--remove", "--config-file", str(nova_conf)) == 2
    out = capsys.readouterr().out
    assert "FAIL    remove.functions: these servers have " in out
    assert changes.SERVER in out
    assert f"{state} exists" in out
    assert "remove.offered" not in out


def test_notes_of_another_directory_are_seen(
    nova_conf: pathlib.Path, capsys: Output, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "state/faulted").mkdir(parents=True)
    note = tmp_path / "state/faulted" / notes.file_name(prepared.GPU)
    note.write_text('{"address": "x", "reason": "its fan has failed"}')
    nova_conf.write_text(f"[nova_accel]\nstate_dir = {tmp_path}/state\n")
    assert run("--only", "state", "--config-file", str(nova_conf)) == 1
    out = capsys.readouterr().out
    assert f"set aside: {prepared.GPU} (its fan has failed)\n" in out
    assert f"nova-accel heal {prepared.GPU}\n" in out


_MISSPELT = {
    "accel": {"driver": ["nova_accel"]},
    "nova": {"x": ["1"]},
    "neutron": {"x": ["1"]},
    "nova-accel": {"sync_interval": ["5"]},
    "novaaccel": {},
    "nova_acel": {},
    "nova_accel": {
        "devce_spec": ["{}"],
        "state-dir": ["/x"],
        "zzz": ["1"],
        "DEVICE_SPEC": ["{}"],
        "sync_interval": ["6"],
        "accelerator_free_weight_multiplier": ["1"],
    },
}


def test_misspelt_options_and_sections_have_the_nearest_name() -> None:
    problems = misspellings.find(
        [("nova.conf", _MISSPELT)], "nova_accel", conf_options.NAMES
    )
    hints = {
        problem.where.removeprefix("nova.conf "): problem.reason.partition(
            "; "
        )[2]
        for problem in problems
    }
    assert hints == {
        "[nova-accel]": "did you mean [nova_accel]?",
        "[novaaccel]": "did you mean [nova_accel]?",
        "[nova_acel]": "did you mean [nova_accel]?",
        "[nova_accel] DEVICE_SPEC": "did you mean device_spec?",
        "[nova_accel] devce_spec": "did you mean device_spec?",
        "[nova_accel] state-dir": "did you mean state_dir?",
        "[nova_accel] zzz": "remove it",
    }
