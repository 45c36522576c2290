# SPDX-License-Identifier: Apache-2.0
"""Each action has a handler; hints name keys of device_spec that exist."""

import errno
import re
import typing

from nova_accel.config.lines import device_spec
from nova_accel.host.execute import action_executor
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


def test_each_action_has_a_handler() -> None:
    kinds = set(typing.get_args(actions.Action))
    assert action_executor.load_handlers().keys() == kinds
    assert kinds > action_executor.load_hints().keys()


def test_keys_of_device_spec_exist() -> None:
    texts = [
        action_executor.get_hint(action, number)
        for action in ACTIONS
        for number in (0, *errno.errorcode)
    ]
    keys = {a or b for text in texts for a, b in KEY.findall(text)}
    assert keys - {*device_spec.KEYS} == set()
    assert len(keys) >= 5
