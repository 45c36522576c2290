# SPDX-License-Identifier: Apache-2.0
"""Each check as doctor prints it with its cause, in a golden file.

It is read through: a check's text, effect and remedy are one paragraph.
"""

import pathlib
import re
from collections.abc import Iterable

from nova_accel.doctor import (
    check_report,
    checked_host,
    host_checks,
    registry,
)
from nova_accel.doctor.host_checks import Level, Role
from nova_accel.host.sysfs import host_reader
from tests.hosts import look, recorded
from tests.support import golden
from tests.support.hosts import prepared
from tests.unit.house import sources
from tests.unit.nova_accel.doctor import (
    changes,
    other_changes,
    removal_changes,
    test_resets,
)
from tests.unit.nova_accel.doctor.test_checks import CHECKS, IN_USE

PATH = golden.PLACE / "commands" / "doctor.txt"
HOSTS_PATH = golden.PLACE / "commands" / "doctor-hosts.txt"
# The command replaces them, too.
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f]")
_HEAD = """\
What `nova-accel doctor` prints of each check on the prepared host, changed as
tests/unit/nova_accel/doctor/changes.py has it.

"""


def test_each_check_is_printed_with_its_cause() -> None:
    checks = {check.name: check for check in CHECKS}
    texts = []
    cases = [
        *changes.CASES.items(),
        *removal_changes.CASES.items(),
        *(
            (name, changes.Case(Level.UNKNOWN, change))
            for name, change in changes.UNSEEN
        ),
        *other_changes.CAUSES,
    ]
    for name, case in cases:
        host = prepared.changed(
            case.before | case.change,
            case.gpus,
            packages=case.packages,
            unwrapped=case.unwrapped,
        )
        texts.append(_print((checks[name],), host))
    golden.check(PATH, _HEAD + "".join(texts))


def _print(
    checks: Iterable[host_checks.HostCheck], host: checked_host.CheckedHost
) -> str:
    """Return what doctor prints of a host, without the line of numbers."""
    text = check_report.as_text(tuple(registry.run(tuple(checks), host)))
    text = re.split(r"^\d+ checks?: ", text, flags=re.MULTILINE)[0]
    return _CONTROLS.sub("?", text.replace(str(sources.ROOT), "DIRECTORY"))


def test_described_hosts_are_printed(tmp_path: pathlib.Path) -> None:
    """Texts of hosts that the prepared one is not: cards in a guest, ..."""
    hosts = {
        name: checked_host.CheckedHost(
            host_reader.HostReader(look.make(name, tmp_path / name))
        )
        for name in ("bound-otherwise", "iommu-off")
    }
    for name in ("h100-in-guest", "hgx-h100-fabric", "mixed-server"):
        reader = host_reader.HostReader(
            source=recorded.load(name), gpus=recorded.load_gpus(name)
        )
        hosts[name] = checked_host.CheckedHost(reader)
    for name, methods, line in (
        ("no-reset", (None,), {"address": test_resets.GPU, "scrub": "none"}),
        ("back", ("flr",), {"address": test_resets.GPU}),
    ):
        root = test_resets.make(
            tmp_path / name, *methods, driver="nouveau" * (name == "back")
        )
        test_resets.write_line(root, {"use": "passthrough", **line})
        hosts[name] = checked_host.CheckedHost(host_reader.HostReader(root))
    compute = registry.select(IN_USE, (Role.COMPUTE,))
    text = "".join(
        f"==== {name}\n\n{_print(compute, host)}"
        for name, host in hosts.items()
    )
    golden.check(HOSTS_PATH, text.replace(str(tmp_path), "DIRECTORY"))
