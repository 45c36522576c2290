# SPDX-License-Identifier: Apache-2.0
"""Commands of ``openstack accel`` need neither a host nor its options."""

import configparser
import pathlib
import subprocess
import sys

import pytest

from nova_accel.cli import openstack_plugin

ROOT = pathlib.Path(__file__).parents[4]
# Libraries that a laptop with python-openstackclient does not have.
ABSENT = (
    *("libvirt", "lxml", "nova", "oslo_log", "oslo_messaging"),
    *("prometheus_client", "pynvml", "pyudev"),
)
# Prints the help of each entry point in the arguments.
PROGRAM = """
import pkgutil, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Finder())
for target in sys.argv[1:]:
    command = pkgutil.resolve_name(target)(None, None)
    print(command.get_parser("openstack accel").format_help())
"""


def read_commands(group: str) -> dict[str, str]:
    """Return the classes of a group's entry points, by name."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"][group].strip().splitlines()
    pairs = [line.partition("=") for line in lines]
    return {name.strip(): target.strip() for name, _, target in pairs}


CLIENT = read_commands(f"openstack.accel.v{openstack_plugin.API_VERSIONS[0]}")


@pytest.mark.slow
def test_the_help_needs_no_library_of_a_host() -> None:
    program = PROGRAM.format(absent=set(ABSENT))
    output = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", program, *CLIENT.values()],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout
    assert output.count("usage: openstack accel") == len(CLIENT)
    text = " ".join(output.split())
    assert "Example: openstack accel device list" in text
    assert "nova-accel device" not in output
    # ``openstack`` has options for credentials itself.
    assert "--os-cloud" not in output
