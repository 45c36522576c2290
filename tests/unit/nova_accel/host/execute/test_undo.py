# SPDX-License-Identifier: Apache-2.0
"""The undo of every action restores the host after a failure."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.model import actions
from tests.lab import fakehost
from tests.support import examples
from tests.support.hosts import executing
from tests.support.hosts.executing import (
    CARD,
    FLEX,
    FLEX_VF,
    HALF,
    ONE_Q,
    OTHER_VF,
    TWO_Q,
    VF,
    VF_2,
    executor,
)

pytestmark = pytest.mark.usefixtures("own_rights")
UUIDS = [f"83c32df7-d52e-4ec1-9668-1f3c7e4df1{n:02}" for n in range(4)]
SPEC = fakehost.HostSpec(cards=(*executing.SPEC.cards, fakehost.Mtty()))


vfs = st.sampled_from([VF, VF_2, OTHER_VF])
types = st.sampled_from([ONE_Q, TWO_Q, HALF, "99999"])
functions = st.sampled_from([CARD, FLEX_VF, FLEX])
drivers = st.sampled_from(["vfio-pci", "nouveau", "i915", "", "none-such"])
# A plan may be outdated: "before" is any count.
counts = st.sampled_from([0, 0, 2, 5, 40])
some_action: st.SearchStrategy[actions.Action] = st.one_of(
    st.builds(
        actions.CreateMdev,
        parent=st.just("mtty"),
        type_id=st.sampled_from(["mtty-1", "mtty-2", "mtty-9"]),
        uuid=st.sampled_from(UUIDS),
    ),
    st.builds(
        actions.RemoveMdev,
        parent=st.just("mtty"),
        type_id=st.just("mtty-1"),
        uuid=st.sampled_from(UUIDS),
    ),
    st.builds(actions.SetVgpuType, function=vfs, type_id=types),
    st.builds(actions.ClearVgpuType, function=vfs, type_id=types),
    st.builds(
        actions.SetVgpuParams,
        target=vfs,
        params=st.sampled_from(["a=1", "b=2,a=1", ""]),
        before=st.sampled_from(["", "z=1"]),
    ),
    st.builds(
        actions.SetVfCount,
        function=st.just(FLEX),
        count=counts,
        before=counts,
        is_probed=st.booleans(),
    ),
    st.builds(
        actions.BindDriver, function=functions, driver=drivers, before=drivers
    ),
)
FAILING = actions.BindDriver(function=CARD, driver="no-such-driver")


@given(
    earlier=st.lists(some_action, max_size=6),
    requested=st.lists(some_action, max_size=6),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples.examples(120),
)
def test_a_failure_restores_the_host(
    kernel: fakehost.Controller,
    earlier: list[actions.Action],
    requested: list[actions.Action],
) -> None:
    kernel.reboot()
    on_host = executor(kernel.root)
    for action in earlier:
        try:
            on_host.apply(action)
        except errors.ActionError:
            continue
    before = executing.state(kernel)
    with pytest.raises(errors.ActionError):
        on_host.apply_all([*requested, FAILING])
    assert executing.state(kernel) == before


@given(requested=st.lists(some_action, min_size=1, max_size=5))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples.examples(60),
)
def test_a_repeated_action_writes_nothing(
    kernel: fakehost.Controller, requested: list[actions.Action]
) -> None:
    kernel.reboot()
    on_host = executor(kernel.root)
    for action in requested:
        try:
            on_host.apply(action)
        except errors.ActionError:
            continue
        written = len(kernel.writes())
        assert not on_host.apply(action)
        assert len(kernel.writes()) == written
