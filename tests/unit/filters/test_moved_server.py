# SPDX-License-Identifier: Apache-2.0
"""Places of the accelerators of a server that moves while it runs."""

import types
from typing import Any

import pytest
from nova import context, exception, objects
from nova.compute import task_states

from filters import moved_server
from filters.fit import device_shape
from nova_accel import errors
from nova_accel.model import names
from tests.unit.filters import test_attached_profiles

TRAITS = {
    "a": [names.pcie_trait("0000:16:01.0")],
    "b": [names.pcie_trait("0000:16:02.0")],
}
SLOTS = (("a", "VGPU"), ("b", "VGPU"), ("root", "CUSTOM_PMEM_NAMESPACE_4GB"))
CLASSES = frozenset({"VGPU"})


@pytest.fixture(autouse=True)
def _registered() -> None:
    objects.register_all()


def get(path: str) -> Any:
    uuid = path.split("/")[2]
    return {"traits": TRAITS[uuid], "resource_provider_generation": 1}


def refuse(path: str) -> Any:
    raise errors.ServiceError("GET", path, 503, "down")


def read(
    monkeypatch: pytest.MonkeyPatch,
    spec: Any,
    get: Any = get,
    task_state: str = task_states.MIGRATING,
    slots: tuple[tuple[str, str], ...] = SLOTS,
    error: Exception | None = None,
) -> device_shape.Shape | None:
    def get_by_uuid(*_: Any, **__: Any) -> Any:
        if error is not None:
            raise error
        resources = [
            types.SimpleNamespace(provider_uuid=uuid, resource_class=name)
            for uuid, name in slots
        ]
        return types.SimpleNamespace(
            task_state=task_state, resources=resources
        )

    monkeypatch.setattr(
        objects.Instance, "get_by_uuid", staticmethod(get_by_uuid)
    )
    monkeypatch.setattr("nova.context.set_target_cell", lambda *_: None)
    spec._context = context.get_admin_context()
    return moved_server.read_shape(spec, CLASSES, get)


def test_a_live_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(
        monkeypatch, test_attached_profiles.moving()
    ) == device_shape.build(
        (frozenset(traits), {"VGPU": 1}) for traits in TRAITS.values()
    )


def test_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = test_attached_profiles.moving
    cold = task_states.RESIZE_PREP
    assert read(monkeypatch, moving(), task_state=cold) is None
    assert read(monkeypatch, test_attached_profiles.request_of()) is None
    assert read(monkeypatch, moving(), slots=SLOTS[1:]) is None


@pytest.mark.parametrize(
    "failure",
    [{"get": refuse}, {"error": exception.InstanceNotFound(instance_id="x")}],
    ids=["Placement", "database"],
)
def test_what_can_not_be_read_prefers_nothing(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: dict[str, Any],
) -> None:
    assert (
        read(monkeypatch, test_attached_profiles.moving(), **failure) is None
    )
    assert "without preferring the same places" in caplog.text
