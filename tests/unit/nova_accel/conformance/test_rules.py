# SPDX-License-Identifier: Apache-2.0
"""Proves that the conformance suite finds each broken rule."""

import dataclasses
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from nova_accel import errors, model
from nova_accel.config import policy
from nova_accel.host.sysfs import host_reader
from nova_accel.model import actions
from tests.support.hosts.widget import (
    GPU,
    OTHER,
    SLOTS,
    Sound,
    broken,
    changed,
    changed_profile,
    check,
)

Describe = Callable[..., Iterator[model.Device | model.Problem]]


def test_a_sound_driver_passes(tmp_path: pathlib.Path) -> None:
    assert check(Sound(), tmp_path) == ()


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (object(), "protocol: object: has not all of"),
        (broken(name="Widget!"), "protocol: Broken: name is 'Widget!'"),
        (broken(name="gadget"), "its entry point's is 'widget'"),
        (changed(plugin="gadget"), "plugin: 0000:41:00.0: plugin is 'gadg"),
        (changed(address="0000:41:00.0"), "0000:41:00.0: is described twice"),
        (changed(address=""), "address is empty"),
        (changed(technology="magic"), "technology is 'magic'"),
        (changed(vendor_id="0xf00d"), "vendor_id is '0xf00d'"),
        (changed(numa_node=-1), "numa_node is negative"),
        (changed(parent="0000:00:00.0"), "its parent 0000:00:00.0 is not"),
        (changed(parent=GPU), "is its own parent"),
        (changed(resource_class="WIDGET"), "'WIDGET' is no resource class"),
        (changed(counters={"custom_x": 1}), "'custom_x' is no resource"),
        (changed(counters={SLOTS: 1.0}), "counter CUSTOM_WIDGET is 1.0"),
        (changed(counters={SLOTS: 1 << 31}), "whole number up to 2147483647"),
        (changed(counters={"VGPU": 1}), "its resource class CUSTOM_WIDGET is"),
        (changed(traits=frozenset({"HW_X"})), "'HW_X' is no trait"),
        (changed(traits=frozenset({"CUSTOM_X"})), "CUSTOM_X is under none"),
        (
            changed(traits=frozenset({"CUSTOM_ACCELERATOR_WIDGET"})),
            "is among the traits of the device too",
        ),
        (changed(slots=()), "0 slots for 1 partitions"),
        (changed(slots=(GPU, GPU)), f"slot {GPU} is there twice"),
        (changed(slots=("x" * 256,)), "is no identifier"),
        (changed(slots=["slot-0"]), "form: 0000:41:00.0: slots is no tuple"),
        (changed(members=("0000:99:00.0",)), "which the host does not have"),
        (changed(members=(GPU,)), f"speaks for {GPU}, and so does"),
        (
            changed(
                partitions=(
                    model.Partition(profile="?", parent="p", handle="h"),
                )
            ),
            "partition h is a ?",
        ),
        (changed_profile(charges={}), "whole charges no CUSTOM_WIDGET"),
        (changed_profile(charges={SLOTS: 0}), "charges 0 of CUSTOM_WIDGET"),
        (changed_profile(charges={SLOTS: 2}), "charges 2 of CUSTOM_WIDGET"),
        (
            changed_profile(charges={SLOTS: 1, "CUSTOM_Y": 1}),
            "charges CUSTOM_Y, which the device has not",
        ),
        (changed_profile(available=2), "is available 2 times, and 1 of"),
        (changed_profile(available=-1), "available is -1"),
        (changed_profile(trait="HW_GPU_API_DXR "), "is no trait"),
        (
            changed_profile(handles={"other": "1"}),
            "claim: 0000:41:00.0 whole: is available, and can't be claimed",
        ),
    ],
)
def test_a_bad_value_is_reported(
    tmp_path: pathlib.Path, driver: object, text: str
) -> None:
    findings = check(driver, tmp_path)
    assert [finding for finding in findings if text in finding], findings


def _raises(self: Sound, *_: object) -> Iterator[model.Device]:
    raise ZeroDivisionError


def _wrong_type(self: Sound, *_: object) -> Iterator[object]:
    yield "a card"


def _without_reason(self: Sound, *_: object) -> Iterator[model.Problem]:
    yield model.Problem(where=GPU, reason=" ")


def _ignoring_taken(
    self: Sound,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    taken: frozenset[str],
) -> Iterator[model.Device | model.Problem]:
    yield from Sound.describe(self, host, rules, frozenset())


def _changing() -> Describe:
    counts = iter(range(1 << 20))

    def describe(
        self: Sound, *arguments: Any
    ) -> Iterator[model.Device | model.Problem]:
        yield model.Problem(where="widget", reason=f"asked {next(counts)}")

    return describe


def _listing(
    self: Sound, *arguments: Any
) -> Iterator[model.Device | model.Problem]:
    os.listdir("/proc/self")
    yield from Sound.describe(self, *arguments)


def _writing(
    self: Sound, *arguments: Any
) -> Iterator[model.Device | model.Problem]:
    with open(os.devnull, "w", encoding="ascii"):
        pass
    yield from Sound.describe(self, *arguments)


def _running(
    self: Sound, *arguments: Any
) -> Iterator[model.Device | model.Problem]:
    subprocess.run(["true"], check=True)  # noqa: S607
    yield from Sound.describe(self, *arguments)


def _uncaught(
    self: Sound,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    taken: frozenset[str],
) -> Iterator[model.Device | model.Problem]:
    for function in host.functions():
        host.attribute(str(function.address), "widget/mode")
        if str(function.address) not in taken:
            yield self.device(str(function.address))


def _giving_up(
    self: Sound,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    taken: frozenset[str],
) -> Iterator[model.Device | model.Problem]:
    """Yield nothing at all if one card can't be read."""
    for function in host.all_functions():
        try:
            host.attribute(str(function.address), "widget/mode")
        except errors.UnreadableError:
            return
    yield from Sound.describe(self, host, rules, taken)


def _describing_others(
    self: Sound,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    taken: frozenset[str],
) -> Iterator[model.Device | model.Problem]:
    """Describe a card when the driver is called for another one."""
    if GPU in host.card_names:
        yield self.device(GPU)
        yield self.device(OTHER)


def _remembering() -> Describe:
    described: set[str] = set()

    def describe(
        self: Sound, card: host_reader.HostReader, *rest: Any
    ) -> Iterator[model.Device | model.Problem]:
        is_first = not described - {*card.card_names}
        described.update(card.card_names)
        for item in Sound.describe(self, card, *rest):
            if is_first and isinstance(item, model.Device):
                yield dataclasses.replace(item, model="first")
            else:
                yield item
        if OTHER in card.card_names:
            described.clear()

    return describe


def _guessing(
    self: Sound,
    host: host_reader.HostReader,
    rules: policy.DeviceRules,
    taken: frozenset[str],
) -> Iterator[model.Device | model.Problem]:
    """Offer capacity only while the mode can't be read."""
    for item in Sound.describe(self, host, rules, taken):
        if isinstance(item, model.Device):
            is_read = bool(item.profiles)
            counters = {} if is_read else {SLOTS: 1}
            yield dataclasses.replace(item, counters=counters, profiles=())


@pytest.mark.parametrize(
    ("describe", "text"),
    [
        (_raises, "describe: widget: raises ZeroDivisionError"),
        (_wrong_type, "describe: 'a card': is neither"),
        (_without_reason, "problem: 0000:41:00.0: reason says nothing"),
        (_ignoring_taken, "taken: 0000:41:00.0: is described, though another"),
        (_changing(), "pure: widget: describes one host in two ways"),
        (_changing(), "capture: widget: describes something else"),
        (_listing, "effect: widget: describe causes os.listdir /proc/self"),
        (_writing, "effect: widget: describe causes open /dev/null"),
        (_running, "effect: widget: describe causes subprocess.Popen true"),
        (_describing_others, f"card: {OTHER}: has {OTHER}, which is not of"),
        (_remembering(), f"card: {OTHER}: is described in another way"),
        (_uncaught, "that costs every device of the card"),
        (_giving_up, f"{OTHER} is lost, though the file is another's"),
        (_giving_up, f"{GPU} is gone without a word"),
        (_guessing, "to give, and none when the file can be read"),
    ],
)
def test_a_bad_description_is_reported(
    tmp_path: pathlib.Path, describe: Describe, text: str
) -> None:
    findings = check(broken(describe=describe), tmp_path)
    assert [finding for finding in findings if text in finding], findings


def bind(claim: model.Claim, driver: str = "w") -> actions.SetVgpuType:
    return actions.SetVgpuType(function=claim.slot, type_id=driver)


def _plan_for_other_device(
    self: Sound, claim: model.Claim
) -> Sequence[actions.Action]:
    return (actions.SetVgpuType(function="0000:01:00.0", type_id="1"),)


def _alternating() -> Callable[..., Sequence[actions.Action]]:
    counts = iter(range(1 << 20))
    return lambda self, claim: (bind(claim, str(next(counts))),)


def _pair(self: Sound, claim: model.Claim) -> Sequence[actions.Action]:
    return bind(claim, "1"), bind(claim, "2")


def _pair_again(self: Sound, claim: model.Claim) -> Sequence[actions.Action]:
    return bind(claim, "1").undo(), bind(claim, "2").undo()


def _bind_once(self: Sound, claim: model.Claim) -> Sequence[actions.Action]:
    return (bind(claim),)


def _plan_badly(self: Sound, claim: model.Claim) -> Sequence[actions.Action]:
    return (1 // 0,)  # type: ignore[return-value]


def _change(
    self: Sound, host: host_reader.HostReader, rules: policy.DeviceRules
) -> Sequence[actions.Action]:
    return (actions.SetVfCount(function=GPU, count=1),)


def _change_the_unknown(
    self: Sound, host: host_reader.HostReader, rules: policy.DeviceRules
) -> Sequence[actions.Action]:
    try:
        host.attribute(GPU, "widget/mode")
    except errors.UnreadableError:
        return _change(self, host, rules)
    return ()


def _stumble(
    self: Sound, host: host_reader.HostReader, rules: policy.DeviceRules
) -> Sequence[actions.Action]:
    raise KeyError(GPU)


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        (
            {"plan_prepare": _plan_for_other_device},
            "0000:01:00.0 is not of the device",
        ),
        ({"plan_prepare": _alternating()}, "gives two plans for one claim"),
        ({"plan_prepare": _bind_once}, "leaves behind what was prepared"),
        (
            {"plan_prepare": _pair, "plan_release": _pair_again},
            "undoes in another order than backwards",
        ),
        ({"plan_release": _plan_badly}, "raises ZeroDivisionError"),
        ({"plan_prepare": lambda s, c: ["x"]}, "'x' is no action"),
        ({"plan_prepare": lambda s, c: None}, "None is no sequence"),
        ({"plan_arrange": _change}, "arrange: no line of policy: would set 1"),
        ({"plan_arrange": _change}, "policy: widget: would set 1"),
        ({"plan_arrange": _stumble}, "plan_arrange raises KeyError"),
        (
            {"plan_arrange": _change_the_unknown},
            "what can't be read is not to be changed",
        ),
    ],
)
def test_a_bad_plan_is_reported(
    tmp_path: pathlib.Path, methods: Mapping[str, Any], text: str
) -> None:
    findings = check(broken(**methods), tmp_path)
    assert [finding for finding in findings if text in finding], findings
