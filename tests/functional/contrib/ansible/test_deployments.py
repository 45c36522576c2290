# SPDX-License-Identifier: Apache-2.0
"""Roles on other hosts than Debian's: overrides of Kolla-Ansible, and EL.

Kolla-Ansible itself does not run: its own nova.conf is a substitute that sets
what it sets, and its files are merged in its order. EL is Debian with facts of
EL and a substitute of grubby.
"""

import os
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from tests.functional.contrib.ansible import debian_host

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_OVERRIDES = "/etc/kolla/config"
_KOLLA = "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n"
_FILTERS = "enabled_filters = ComputeFilter, NUMATopologyFilter"
_COMMON = f"""\
[devices]
enabled_mdev_types = nvidia-35
[filter_scheduler]
{_FILTERS}
"""
_EL = {
    "ansible_os_family": "RedHat",
    "ansible_distribution": "AlmaLinux",
    "ansible_kernel": "5.14.0-503.el9.x86_64",
    "ansible_pkg_mgr": "dnf",
    "ansible_processor": ["0", "GenuineIntel"],
    "ansible_service_mgr": "none",
}
_SETUP = f"""\
#!/usr/bin/python3
import json
print(json.dumps({{"changed": False, "ansible_facts": {_EL!r}}}))
"""
# Like the script of EL 9, for one kernel.
_GRUBBY = """\
#!/usr/bin/python3
import pathlib
import sys
options = dict(word.partition("=")[::2] for word in sys.argv[1:])
path = pathlib.Path("/etc/substitute-arguments")
words = path.read_text().split()
if "--info" in options:
    print(f'index=0\\nkernel="/boot/vmlinuz"\\nargs="{" ".join(words)}"')
    sys.exit()
removed = options["--remove-args"].split()
words = [word for word in words if word not in removed]
path.write_text(" ".join(words + options["--args"].split()) + "\\n")
"""


@pytest.fixture
def host() -> Iterator[debian_host.DebianHost]:
    with debian_host.DebianHost() as host:
        yield host


def merge(host: debian_host.DebianHost, service: str) -> str:
    """Return the nova.conf of a service, as Kolla-Ansible merges it."""
    names = ("nova.conf", f"nova/{service}.conf")
    overrides = [host.read(f"{_OVERRIDES}/{name}") for name in names]
    return "\n".join([_KOLLA, *overrides])


def parse(host: debian_host.DebianHost, service: str) -> cfg.ConfigOpts:
    """Return the options of a service."""
    path = host.files / "merged.conf"
    path.write_text(merge(host, service))
    options = cfg.ConfigOpts()
    options.register_opt(cfg.StrOpt("compute_driver"))
    options.register_opt(cfg.ListOpt("enabled_mdev_types"), "devices")
    options.register_opt(cfg.StrOpt("state_dir"), "nova_accel")
    options.register_opt(cfg.ListOpt("enabled_filters"), "filter_scheduler")
    options([], default_config_files=[str(path)])
    return options


def test_the_overrides_of_kolla_activate_the_library(
    host: debian_host.DebianHost,
) -> None:
    host.write(f"{_OVERRIDES}/nova.conf", _COMMON)
    variables = {
        "nova_accel_deployment": "kolla",
        "nova_accel_services": ["compute", "scheduler"],
    }
    files = host.list_files()
    install = host.play("install", "nova_accel", variables)
    assert install.status == 0, install.output
    compute = parse(host, "nova-compute")
    assert compute.compute_driver == "accel.AccelLibvirtDriver"
    assert compute.devices.enabled_mdev_types is None
    assert compute.nova_accel.state_dir == "/var/lib/nova/accel"
    scheduler = parse(host, "nova-scheduler")
    filters = scheduler.filter_scheduler.enabled_filters
    assert filters == [
        *_FILTERS.split(" = ")[1].split(", "),
        "AcceleratorFilter",
    ]
    again = host.play("install", "nova_accel", variables)
    assert (again.status, again.changed) == (0, 0), again.output
    remove = host.play("remove", "nova_accel", variables)
    assert remove.status == 0, remove.output
    assert host.list_files() == files


def test_a_compute_host_of_kolla_is_verified(
    host: debian_host.DebianHost,
) -> None:
    """Its nova.conf is from before the overrides, then from after them."""
    path = "/etc/kolla/nova-compute/nova.conf"
    host.write(f"{_OVERRIDES}/nova.conf", _COMMON)
    variables = {"nova_accel_deployment": "kolla"}
    install = host.play("install", "nova_accel", variables)
    assert install.status == 0, install.output
    host.write(path, f"{_KOLLA}[nova_accel]\nsync_interval = 60\n")
    verify = host.play("verify", "nova_accel", variables)
    assert verify.status != 0
    assert "nova.driver" in verify.output
    host.write(path, merge(host, "nova-compute"))
    host.run("install", "-d", "/var/lib/nova/accel")
    verify = host.play("verify", "nova_accel", variables)
    assert verify.status == 0, verify.output


def test_the_arguments_of_the_kernel_are_those_of_grubby(
    host: debian_host.DebianHost,
) -> None:
    path = "/etc/substitute-arguments"
    host.write(path, "ro intel_iommu=off quiet\n")
    library = host.files / "library"
    library.mkdir()
    (library / "setup").write_text(_SETUP)
    grubby = host.files / "bin/grubby"
    grubby.write_text(_GRUBBY)
    for program in (grubby, library / "setup"):
        program.chmod(0o755)
    options = ("--module-path", "/mnt/library")
    files = host.list_files()
    install = host.play("install", "iommu", {}, *options)
    assert install.status == 0, install.output
    assert host.read(path) == "ro quiet intel_iommu=on iommu=pt\n"
    again = host.play("install", "iommu", {}, *options)
    assert (again.status, again.changed) == (0, 0), again.output
    remove = host.play("remove", "iommu", {}, *options)
    assert remove.status == 0, remove.output
    assert set(host.read(path).split()) == {"ro", "intel_iommu=off", "quiet"}
    assert host.list_files().keys() == files.keys()
