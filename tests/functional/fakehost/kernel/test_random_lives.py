# SPDX-License-Identifier: Apache-2.0
"""Random mdev creations and removals agree with a small model."""

from __future__ import annotations

import errno
import os
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.functional.fakehost.support.cards import (
    A40_VFS,
    T4,
    number,
    refused,
    store,
)
from tests.lab.fakehost import Controller
from tests.support import examples

pytestmark = pytest.mark.fakehost

#: type -> what it costs: ports, or GB of a card that takes one size
MTTY_TYPES = {"mtty-1": 1, "mtty-2": 2}
T4_TYPES = {
    "nvidia-230": 1,
    "nvidia-231": 2,
    "nvidia-227": 4,
    "nvidia-232": 4,
    "nvidia-234": 16,
}
A40_TYPES = {"nvidia-557": 1, "nvidia-564": 16, "nvidia-565": 24}
SIZES = MTTY_TYPES | T4_TYPES | A40_TYPES

#: uuid -> parent, type
Model = dict[str, tuple[str, str]]


def expected(model: Model, parent: str, kind: str, uuid: str) -> int:
    """Return the errno that create must give, 0 for success."""
    if uuid in model:
        return errno.EEXIST
    if parent == "mtty":
        used = sum(used_on(model, "mtty"))
        return 0 if used + SIZES[kind] <= 24 else errno.ENOSPC
    if parent == T4:
        return fits_card(used_on(model, T4), SIZES[kind], 16, 16)
    if used_on(model, parent):
        return errno.EIO
    return fits_card(used_on(model, *A40_VFS), SIZES[kind], 48, 32)


def used_on(model: Model, *parents: str) -> list[int]:
    return [SIZES[k] for parent, k in model.values() if parent in parents]


def fits_card(used: list[int], size: int, total: int, most: int) -> int:
    if any(other != size for other in used):
        return errno.EIO
    return 0 if len(used) < min(most, total // size) else errno.EIO


def places() -> st.SearchStrategy[tuple[str, str]]:
    return st.one_of(
        st.tuples(st.just("mtty"), st.sampled_from(sorted(MTTY_TYPES))),
        st.tuples(st.just(T4), st.sampled_from(sorted(T4_TYPES))),
        st.tuples(
            st.sampled_from(A40_VFS), st.sampled_from(sorted(A40_TYPES))
        ),
    )


class Lives(RuleBasedStateMachine):
    host: ClassVar[Controller]
    live = Bundle("live")

    @initialize()
    def boot(self) -> None:
        self.host.reboot()
        self.model: Model = {}

    @rule(target=live, place=places(), uuid=st.uuids())
    def create(self, place: tuple[str, str], uuid: object) -> str:
        self.make(*place, str(uuid))
        return str(uuid)

    @rule(uuid=live, place=places())
    def create_again(self, uuid: str, place: tuple[str, str]) -> None:
        self.make(*place, uuid)

    def make(self, parent: str, kind: str, uuid: str) -> None:
        types = self.host.sys / f"class/mdev_bus/{parent}"
        path = types / "mdev_supported_types" / kind
        code = expected(self.model, parent, kind, uuid)
        room = number(path / "available_instances")
        if code == 0:
            assert room > 0
            store(path / "create", uuid)
            self.model[uuid] = (parent, kind)
            return
        assert room == 0 or code == errno.EEXIST
        with refused(code):
            store(path / "create", uuid)

    @rule(uuid=consumes(live))
    def remove(self, uuid: str) -> None:
        path = self.host.sys / "bus/mdev/devices" / uuid / "remove"
        if self.model.pop(uuid, None):
            store(path, "1")
        else:
            with refused(errno.ENOENT):
                store(path, "1")

    @invariant()
    def lists_agree(self) -> None:
        listed = os.listdir(self.host.sys / "bus/mdev/devices")
        assert sorted(listed) == sorted(self.model)
        seen = {
            uuid: (mdev["parent"], mdev["type"])
            for uuid, mdev in self.host.mdevs().items()
        }
        assert seen == self.model

    def teardown(self) -> None:
        for uuid in self.model:
            path = self.host.sys / "bus/mdev/devices" / uuid / "remove"
            store(path, "1")
        nodes = os.listdir(self.host.root / "dev/vfio")
        assert nodes == ["vfio"]


def test_random_lives(host: Controller) -> None:
    Lives.host = host
    chosen = settings(
        max_examples=examples.examples(20),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Lives, settings=chosen)
