# SPDX-License-Identifier: Apache-2.0
"""Places that libvirt's QEMU driver gives the devices of a domain.

The driver is embedded in a process of its own, ``virsh``: nothing of this
computer is changed, and no guest is started.
"""

import pathlib
import re
import subprocess
from collections.abc import Callable, Sequence

from lxml import etree

from tests.lab.guests import embedded

_DOMAIN = re.compile(r"<domain .*?</domain>", re.DOTALL)


def define(
    root: pathlib.Path,
    definition: str,
    attached: Sequence[str] = (),
    correct: Callable[[str], str] = str,
) -> tuple[str, ...]:
    """Return a domain as libvirt defines it, and after each attachment.

    :param root: an empty directory.
    :param attached: XML of the devices.
    :param correct: returns what nova-compute defines in place of a domain
        that it has defined, before the start.
    :raises RuntimeError: libvirt refuses it.
    """
    (root / "etc").mkdir()
    (root / "etc/qemu.conf").write_text(embedded.SETTINGS)
    element = etree.fromstring(definition)
    # Nova's domains use KVM, which this computer may lack.
    element.set("type", "qemu")
    for disk in element.iterfind("./devices/disk"):
        _give_file(disk)
    name = element.findtext("./name")
    (first,) = _run(root, _define(root, element), f"dumpxml {name}")
    commands = [_define(root, etree.fromstring(correct(first)))]
    commands.append(f"dumpxml {name}")
    for number, text in enumerate(attached):
        device = etree.fromstring(text)
        _give_file(device)
        path = root / f"{number}.xml"
        path.write_bytes(etree.tostring(device))
        commands.append(f"attach-device {name} {path} --config")
        commands.append(f"dumpxml {name}")
    return _run(root, *commands)


def _run(root: pathlib.Path, *commands: str) -> tuple[str, ...]:
    """Return the domains that commands of virsh print."""
    done = subprocess.run(  # noqa: S603
        ["virsh", "-q", "-c", f"qemu:///embed?root={root}"],  # noqa: S607
        input="\n".join((*commands, "")),
        capture_output=True,
        text=True,
        check=False,
    )
    domains = tuple(_DOMAIN.findall(done.stdout))
    if len(domains) != sum(c.startswith("dumpxml") for c in commands):
        raise RuntimeError(done.stderr)
    return domains


def _define(root: pathlib.Path, element: etree._Element) -> str:
    """Return virsh's command that defines a domain."""
    path = root / "domain.xml"
    path.write_bytes(etree.tostring(element))
    return f"define {path}"


def _give_file(device: etree._Element) -> None:
    """Let a volume of Nova's tests, which no QEMU knows, be a file."""
    source = device.find("./source[@protocol='fake']")
    if source is not None:
        device.set("type", "file")
        source.attrib.clear()
        source.set("file", "/volume")
