# SPDX-License-Identifier: Apache-2.0
"""Each check as doctor prints it with its cause, in a golden file.

It is read through: a check's text, effect and remedy are one paragraph.
"""

import re

from nova_accel.doctor import check_report, registry
from nova_accel.doctor.host_checks import Level
from tests.support import golden
from tests.support.hosts import prepared
from tests.unit.house import sources
from tests.unit.nova_accel.doctor import changes
from tests.unit.nova_accel.doctor.test_checks import CHECKS

PATH = golden.PLACE / "commands" / "doctor.txt"
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
        *changes.REMOVAL_CASES.items(),
        *(
            (name, changes.Case(Level.UNKNOWN, change))
            for name, change in changes.UNSEEN
        ),
    ]
    for name, case in cases:
        host = prepared.changed(
            case.before | case.change, case.gpus, packages=case.packages
        )
        text = check_report.as_text(tuple(registry.run((checks[name],), host)))
        text = text.partition("1 checks:")[0]
        text = text.replace(str(sources.ROOT), "DIRECTORY")
        texts.append(_CONTROLS.sub("?", text))
    golden.check(PATH, _HEAD + "".join(texts))
