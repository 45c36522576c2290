# SPDX-License-Identifier: Apache-2.0
"""Actions are applied once, read back, and undone on failure."""

import errno
import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_accel import errors
from nova_accel.host.execute import action_executor
from nova_accel.model import actions
from tests.lab import fakehost
from tests.support import examples

GPU = "0000:3b:00.0"
MTTY = "mtty"
UUIDS = [f"83c32df7-d52e-4ec1-9668-1f3c7e4df1{n:02}" for n in range(30)]
pytestmark = pytest.mark.usefixtures("own_rights")


def executor(root: Path) -> action_executor.Executor:
    return action_executor.Executor(str(root))


def create(
    uuid: str = UUIDS[0], type_id: str = "mtty-1", parent: str = MTTY
) -> actions.CreateMdev:
    return actions.CreateMdev(parent=parent, type_id=type_id, uuid=uuid)


def paths(controller: fakehost.Controller) -> set[str]:
    """Return the paths of the simulated sysfs, without IOMMU groups.

    Their numbers are new each time.
    """
    return {
        os.path.join(where, name)
        for where, below, files in os.walk(controller.sys)
        for name in (*below, *files)
        if "iommu_groups" not in where
    }


# -- what works ------------------------------------------------------------


def test_an_mdev_is_created_and_removed(kernel: fakehost.Controller) -> None:
    before = paths(kernel)
    action = create()
    assert executor(kernel.root).apply(action)
    (made,) = kernel.mdevs().items()
    assert made[0] == action.uuid
    assert (made[1]["type"], made[1]["parent"]) == ("mtty-1", MTTY)
    assert executor(kernel.root).apply(action.undo())
    assert kernel.mdevs() == {}
    assert paths(kernel) == before


def test_actions_are_idempotent(kernel: fakehost.Controller) -> None:
    on_host = executor(kernel.root)
    action = create()
    assert [on_host.apply(action) for _ in range(3)] == [True, False, False]
    undo = action.undo()
    assert [on_host.apply(undo) for _ in range(3)] == [True, False, False]
    assert [w["data"] for w in kernel.writes()] == [action.uuid, "1"]


def test_each_change_is_logged_once(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nova_accel")
    for _ in range(2):
        executor(kernel.root).apply(create())
    assert caplog.messages == [
        f"create mdev {UUIDS[0]} (mtty-1) on mtty: done"
    ]


# A T4 makes vGPUs of one size only, mtty runs out of ports: many of these
# lists fail somewhere.
creations = st.lists(
    st.builds(
        create, st.sampled_from(UUIDS), st.sampled_from(["mtty-1", "mtty-2"])
    )
    | st.builds(
        create,
        st.sampled_from(UUIDS),
        st.sampled_from(["nvidia-230", "nvidia-231", "nvidia-232"]),
        st.just(GPU),
    ),
    max_size=8,
)


@given(first=creations, second=creations)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples.examples(40),
)
def test_a_failure_undoes_its_own_actions_only(
    kernel: fakehost.Controller,
    first: list[actions.CreateMdev],
    second: list[actions.CreateMdev],
) -> None:
    kernel.reboot()
    on_host = executor(kernel.root)
    for action in first:
        try:
            on_host.apply(action)
        except errors.ActionError:
            continue
    before = kernel.mdevs()
    kinds = {uuid: facts["type"] for uuid, facts in before.items()}
    try:
        on_host.apply_all(second)
    except errors.ActionError:
        assert kernel.mdevs() == before
        return
    made = {action.uuid: action.type_id for action in second}
    after = {u: facts["type"] for u, facts in kernel.mdevs().items()}
    assert after == kinds | made


# -- what fails ------------------------------------------------------------


def failure(root: Path, *requested: actions.Action) -> errors.ActionError:
    with pytest.raises(errors.ActionError) as caught:
        executor(root).apply_all(requested)
    return caught.value


def test_a_full_parent_is_enospc(kernel: fakehost.Controller) -> None:
    error = failure(kernel.root, *[create(uuid) for uuid in UUIDS[:25]])
    assert error.number == errno.ENOSPC
    assert str(error) == (
        f"create mdev {UUIDS[24]} (mtty-1) on mtty: ENOSPC (No space left on"
        " device); the device is full: another guest took the room; free a"
        " partition or choose another profile"
    )
    assert kernel.mdevs() == {}


def test_a_type_of_another_size_is_eio(kernel: fakehost.Controller) -> None:
    error = failure(
        kernel.root,
        create(UUIDS[0], "nvidia-230", GPU),
        create(UUIDS[1], "nvidia-231", GPU),
    )
    assert error.number == errno.EIO
    assert "nvidia-231" in str(error)
    assert "dmesg" in str(error)
    assert kernel.mdevs() == {}


def test_a_uuid_in_use_is_eexist(kernel: fakehost.Controller) -> None:
    executor(kernel.root).apply(create(UUIDS[0]))
    error = failure(kernel.root, create(UUIDS[0], "nvidia-230", GPU))
    assert error.number == errno.EEXIST
    assert "in use by another mdev" in error.hint
    assert kernel.mdevs()[UUIDS[0]]["type"] == "mtty-1"


@pytest.mark.skipif(
    bool(fakehost.missing()), reason=fakehost.missing() or "simulated"
)
def test_an_mdev_on_another_parent_is_another_mdev(
    tmp_path: Path,
) -> None:
    other = "0000:af:00.0"
    spec = fakehost.HostSpec(
        cards=tuple(
            fakehost.NvidiaGpu(address=address, model="T4")
            for address in (GPU, other)
        )
    )
    with fakehost.simulated_sysfs(spec, tmp_path) as kernel:
        executor(kernel.root).apply(create(UUIDS[0], "nvidia-230", GPU))
        error = failure(kernel.root, create(UUIDS[0], "nvidia-230", other))
        assert error.number == errno.EEXIST


def test_a_type_that_is_gone_is_enoent(kernel: fakehost.Controller) -> None:
    error = failure(kernel.root, create(type_id="mtty-3"))
    assert error.number == errno.ENOENT
    assert "nova-accel inspect" in error.hint


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("EACCES", "capabilities"),
        ("EPERM", "capabilities"),
        ("EBUSY", "stop it first"),
        ("EUSERS", "free one first"),
        ("ENOTTY", "dmesg"),
    ],
)
def test_each_error_has_a_hint(
    kernel: fakehost.Controller, code: str, hint: str
) -> None:
    kernel.fail("class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", code)
    error = failure(kernel.root, create())
    assert errno.errorcode[error.number] == code
    assert code in str(error)
    assert hint in error.hint


def test_a_failed_undo_is_logged(
    kernel: fakehost.Controller, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.fail("*/remove", "EBUSY")
    error = failure(kernel.root, create(), create(UUIDS[1], "mtty-3"))
    assert error.number == errno.ENOENT
    assert f"Undo failed: remove mdev {UUIDS[0]}" in caplog.text
    assert set(kernel.mdevs()) == {UUIDS[0]}


def test_any_exception_undoes_the_actions(
    kernel: fakehost.Controller,
) -> None:
    """The failure may come from the library itself."""
    requested = [create(UUIDS[0]), create(UUIDS[1], "../mtty-1")]
    with pytest.raises(errors.MalformedError, match="mdev type"):
        executor(kernel.root).apply_all(requested)
    assert kernel.mdevs() == {}

    def interrupted() -> Iterator[actions.Action]:
        yield create(UUIDS[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor(kernel.root).apply_all(interrupted())
    assert kernel.mdevs() == {}


# -- directories without a kernel ------------------------------------------


def bare(root: Path) -> Path:
    """Make the written files in a plain directory."""
    kind = root / "sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1"
    kind.mkdir(parents=True)
    (kind / "create").touch()
    (root / "sys/bus/mdev/devices").mkdir(parents=True)
    return kind


def test_a_write_without_effect_is_an_error(tmp_path: Path) -> None:
    kind = bare(tmp_path)
    error = failure(tmp_path, create())
    assert error.number == 0
    assert "accepted it, but reading back shows no change" in str(error)
    assert (kind / "create").read_text() == UUIDS[0]


def test_an_mdev_may_appear_late(tmp_path: Path) -> None:
    """Its type link comes after its directory, as in a real kernel."""
    kind = bare(tmp_path)

    def appear() -> None:
        while not (kind / "create").read_text():
            time.sleep(0.01)
        made = tmp_path / "sys/devices/mtty" / UUIDS[0]
        made.mkdir(parents=True)
        (tmp_path / "sys/bus/mdev/devices" / UUIDS[0]).symlink_to(made)
        time.sleep(0.2)
        (made / "mdev_type").symlink_to(kind)

    late = threading.Thread(target=appear)
    late.start()
    try:
        assert executor(tmp_path).apply(create())
    finally:
        late.join()


def test_two_threads_create_mdevs_concurrently(
    kernel: fakehost.Controller,
) -> None:
    on_host = executor(kernel.root)
    halves = [UUIDS[:10], UUIDS[10:20]]
    threads = [
        threading.Thread(
            target=on_host.apply_all, args=([create(u) for u in half],)
        )
        for half in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(kernel.mdevs()) == set(itertools.chain(*halves))
