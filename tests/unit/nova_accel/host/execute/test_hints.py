# SPDX-License-Identifier: Apache-2.0
"""Hints name keys of device_spec that exist."""

import errno
import re

from nova_accel.config import device_spec
from nova_accel.host.execute import hints
from nova_accel.model import actions

FUNCTION = "0000:41:00.0"
ACTIONS = (
    actions.SetMixedSizes(gpu=FUNCTION, is_mixed=True),
    actions.SetVfCount(function=FUNCTION, count=4),
    actions.SetServices(function=FUNCTION, services="sym"),
    actions.SetVgpuParams(target=FUNCTION, params="a=1"),
    actions.ResetFunction(function=FUNCTION),
)
KEY = re.compile(
    r"(?:remove|correct|lower) (\w+)(?= (?:in|from)(?: its)? device_spec)"
    r'|"(\w+)": '
)


def test_keys_of_device_spec_exist() -> None:
    texts = [
        hints.get_hint(action, number)
        for action in ACTIONS
        for number in (0, *errno.errorcode)
    ]
    keys = {a or b for text in texts for a, b in KEY.findall(text)}
    assert keys - {*device_spec.KEYS} == set()
    assert len(keys) >= 5
