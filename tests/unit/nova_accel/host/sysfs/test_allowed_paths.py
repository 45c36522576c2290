# SPDX-License-Identifier: Apache-2.0
"""Files outside of /sys are read without their secrets."""

import errno
import os
import pathlib

import pytest

from nova_accel import errors
from nova_accel.discovery.capture import RecordedFiles, list_records
from nova_accel.host import host_paths
from nova_accel.host.sysfs import fs

SECRET = "s3cr3t-value"  # noqa: S105
NOVA_CONF = f"""\
[DEFAULT]
transport_url = rabbit://nova:{SECRET}@bus
compute_driver = accel.AccelLibvirtDriver
[nova_accel]
device_spec = {{"use": "off",
  "address": "0000:41:*"}}
unknown_password = {SECRET}
other_password: {SECRET}={SECRET}
[placement]
password = {SECRET}
 {SECRET}
[nova-accel]
admin_token = {SECRET}
"""
LINES = {
    **dict.fromkeys(host_paths.NOVA_CONF, NOVA_CONF),
    "/proc/cmdline": f"intel_iommu=on rd.luks.key={SECRET} pci=realloc\n",
    "/etc/default/grub": f'GRUB_CMDLINE_LINUX="iommu=pt key={SECRET}"\n'
    f'GRUB_PASSWORD="{SECRET}"\n',
    "/proc/77/mountinfo": f"1 0 0:1 / /sys ro - sysfs {SECRET} rw\n"
    f"2 0 0:1 / /home/{SECRET} rw - nfs server rw\n",
    f"{host_paths.QEMU_CAPABILITIES}/a.xml": "<version>9000000</version>\n"
    f"<uuid>{SECRET}</uuid>\n",
}


@pytest.mark.parametrize("path", LINES)
def test_no_secret_is_read(path: str) -> None:
    text = fs.Files(RecordedFiles({path: LINES[path]}), host_paths.ALL).text(
        path
    )
    assert text.strip()
    assert SECRET not in text


@pytest.mark.parametrize("path", LINES)
def test_a_reduced_text_stays_the_same(path: str) -> None:
    """An archive is reduced again when it is read."""
    text = host_paths.ALL.reduce_text(path, LINES[path])
    assert host_paths.ALL.reduce_text(path, text) == text


def test_options_of_the_library_are_read_in_full() -> None:
    text = host_paths.ALL.reduce_text("/etc/nova/nova.conf", NOVA_CONF)
    assert '{"use": "off",\n  "address": "0000:41:*"}' in text
    assert "unknown_password =\n" in text
    assert "compute_driver = accel.AccelLibvirtDriver" in text


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/nova/api-paste.ini",
        "/proc/1/environ",
        "/etc/nvidia/ClientConfigToken/client_configuration_token.tok",
        "/root",
    ],
)
def test_other_files_do_not_exist(path: str) -> None:
    files = fs.Files(RecordedFiles({path: SECRET}), host_paths.ALL)
    with pytest.raises(errors.UnreadableError) as refused:
        files.text(path)
    assert refused.value.number == errno.ENOENT
    assert not files.exists(path)


def test_the_mode_of_a_node_is_read(tmp_path: pathlib.Path) -> None:
    node = tmp_path / "dev/vfio/vfio"
    node.parent.mkdir(parents=True)
    node.touch(0o600)
    node.chmod(0o640)
    files = fs.Files(fs.DiskSource(tmp_path), host_paths.ALL)
    assert files.mode("/dev/vfio/vfio") == 0o640
    copy = fs.Files(RecordedFiles(list_records(files)), host_paths.ALL)
    assert copy.mode("/dev/vfio/vfio") == 0o640


def test_modes_of_other_files_are_not_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sys").mkdir()
    with pytest.raises(errors.UnreadableError, match="EINVAL"):
        fs.Files(fs.DiskSource(tmp_path), host_paths.ALL).mode("/sys")


def test_a_file_of_proc_is_read_to_its_end() -> None:
    """Each read returns at most one page of it."""
    content = fs.DiskSource("/").content("/proc/self/maps")
    assert len(content) > os.sysconf("SC_PAGE_SIZE")


def test_the_release_of_the_running_kernel_is_read() -> None:
    """The kernel refuses to fill a buffer of the size of large files."""
    files = fs.Files(fs.DiskSource("/"))
    assert files.text(fs.KERNEL_RELEASE).strip() == os.uname().release
