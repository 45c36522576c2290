# SPDX-License-Identifier: Apache-2.0
"""The DevStack plugin, with DevStack's functions of INI files.

DevStack itself does not run here.
"""

import pathlib
import subprocess

import pytest

from tests.unit.house import sources

_PLUGIN = sources.ROOT / "devstack"
_STUB = pathlib.Path(__file__).with_name("devstack.sh")
#: As DevStack writes it before the phase post-config.
_NOVA_CONF = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[filter_scheduler]
enabled_filters = ComputeFilter,PciPassthroughFilter
"""
_ALL = "n-api,n-sch,n-cpu,placement-api"
# Spaces, a glob and escaped quotes.
_SPEC = (
    '{"address": "0000:3b:00.0", "use": "off"}\n'
    r'{"address": "0000:*", "scrub_command": "/bin/wipe \"all of it\""}'
)


def read_options(path: pathlib.Path) -> dict[str, dict[str, list[str]]]:
    """Return the values of options by section and name, in their order."""
    sections: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            name, _, value = line.partition("=")
            values = sections.setdefault(section, {})
            values.setdefault(name.strip(), []).append(value.strip())
    return sections


class DevStack:
    """Directory of a DevStack that has configured Nova."""

    def __init__(self, place: pathlib.Path, services: str) -> None:
        self.place, self.services = place, services
        self.nova_conf = place / "nova.conf"
        self.cell_conf = place / "nova_cell1.conf"
        self.calls = place / "calls"
        self.nova_conf.write_text(_NOVA_CONF)
        self.cell_conf.write_text(_NOVA_CONF)
        self.calls.touch()

    def run(self, *phase: str, spec: str = "") -> str:
        """Run the plugin in a phase as DevStack does; return its output."""
        script = (
            "set -o errexit; DEST=$1 NOVA_STATE_PATH=$1/state;"
            " NOVA_CONF=$1/nova.conf NOVA_CONF_DIR=$1 NOVA_FILTERS=F;"
            " ENABLED_SERVICES=$2 NOVA_ACCEL_DEVICE_SPEC=$3 CALLS=$1/calls;"
            ' source "$4"; source "$5/settings"; plugin=$5; shift 5;'
            ' source "$plugin/plugin.sh" "$@"'
        )
        done = subprocess.run(  # noqa: S603 - fixed script
            [
                *("bash", "-c", script, "bash", str(self.place)),
                *(self.services, spec, str(_STUB), str(_PLUGIN), *phase),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout


@pytest.mark.parametrize(
    ("services", "arguments"),
    [
        (_ALL, " compute"),
        ("n-cpu", " compute"),
        ("n-api,n-sch", ""),
        ("g-api", None),
    ],
)
def test_the_library_is_installed_where_nova_runs(
    tmp_path: pathlib.Path, services: str, arguments: str | None
) -> None:
    devstack = DevStack(tmp_path, services)
    devstack.run("stack", "install")
    call = f"setup_develop {tmp_path}/nova-accel{arguments}\n"
    expected = "" if arguments is None else call
    assert devstack.calls.read_text() == expected


@pytest.mark.parametrize("times", [1, 2])
def test_nova_is_configured(tmp_path: pathlib.Path, times: int) -> None:
    """The second time is that of a stack.sh after another one."""
    devstack = DevStack(tmp_path, _ALL)
    for _ in range(times):
        devstack.run("stack", "post-config", spec=_SPEC)
    compute = {
        "DEFAULT": {"config_source": ["accel"]},
        "accel": {"driver": ["nova_accel"]},
        "nova_accel": {
            "state_dir": [f"{tmp_path}/state/accel"],
            "device_spec": _SPEC.split("\n"),
        },
    }
    scheduler = {
        "enabled_filters": [
            "ComputeFilter,PciPassthroughFilter,AcceleratorFilter"
        ],
        "available_filters": [
            "nova.scheduler.filters.all_filters",
            "filters.accelerator_filter.AcceleratorFilter",
        ],
        "weight_classes": [
            "nova.scheduler.weights.all_weighers,"
            "filters.accelerator_weigher.AcceleratorWeigher"
        ],
    }
    written = read_options(devstack.nova_conf)
    assert written == {**compute, "filter_scheduler": scheduler}
    cell = read_options(devstack.cell_conf)
    assert {name: cell[name] for name in compute} == compute


def test_a_scheduler_alone_has_no_driver(tmp_path: pathlib.Path) -> None:
    devstack = DevStack(tmp_path, "n-api,n-sch")
    devstack.run("stack", "post-config")
    written = read_options(devstack.nova_conf)
    assert written.keys() == {"DEFAULT", "filter_scheduler"}
    assert written["DEFAULT"] == {"compute_driver": ["libvirt.LibvirtDriver"]}
    assert devstack.cell_conf.read_text() == _NOVA_CONF


def test_a_clean_removes_the_state(tmp_path: pathlib.Path) -> None:
    devstack = DevStack(tmp_path, _ALL)
    (tmp_path / "state/accel").mkdir(parents=True)
    for phase in (("stack", "pre-install"), ("stack", "extra"), ("unstack",)):
        assert devstack.run(*phase) == ""
    assert (tmp_path / "state/accel").is_dir()
    devstack.run("clean")
    assert not (tmp_path / "state/accel").exists()
    assert devstack.nova_conf.read_text() == _NOVA_CONF
