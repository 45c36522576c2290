# SPDX-License-Identifier: Apache-2.0
"""Groups of attached profiles in the request of a server that moves."""

import types
from typing import Any

import pytest
from nova import context, exception, objects
from nova.compute import task_states

from filters import accelerator_filter, attached_profiles
from nova_accel.model import attachment

UUID = "6f4d2a52-8a4e-4f0c-9d53-b3c4e5a1f001"
ATTACHED = attachment.Attachment(
    number=1,
    profile="X",
    resources={"VGPU": 1},
    required=frozenset({"CUSTOM_VGPU_X"}),
    provider="provider",
    slot="slot-1",
    state=attachment.AttachmentState.ATTACHED,
)
CELL0 = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(autouse=True)
def _registered() -> None:
    objects.register_all()


def request_of(**fields: Any) -> Any:
    return objects.RequestSpec(
        instance_uuid=UUID,
        flavor=objects.Flavor(extra_specs={}),
        requested_resources=[],
        **fields,
    )


def moving() -> Any:
    cell = objects.CellMapping(
        uuid=CELL0, database_connection="none", transport_url="none"
    )
    return request_of(requested_destination=objects.Destination(cell=cell))


def store(
    monkeypatch: pytest.MonkeyPatch,
    *attachments: attachment.Attachment,
    error: Exception | None = None,
    task_state: str = task_states.RESIZE_PREP,
) -> list[str]:
    """Let Nova's database have a server; return the uuids that are read."""
    reads: list[str] = []

    def get_by_uuid(_: Any, uuid: str, **__: Any) -> Any:
        reads.append(uuid)
        if error is not None:
            raise error
        return types.SimpleNamespace(
            task_state=task_state,
            system_metadata=attachment.update_metadata({}, attachments),
        )

    monkeypatch.setattr(
        objects.Instance, "get_by_uuid", staticmethod(get_by_uuid)
    )
    monkeypatch.setattr("nova.context.set_target_cell", lambda *_: None)
    return reads


def add(spec: Any) -> bool:
    admin = context.get_admin_context()
    return bool(attached_profiles.request_attached_profiles(admin, spec))


def test_a_move_requests_what_is_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(monkeypatch, ATTACHED)
    spec = moving()
    assert add(spec)
    (group,) = accelerator_filter.parse_spec(spec).groups
    assert group == ATTACHED.open_group()
    assert not add(spec), "the same request, sent again"
    assert len(spec.requested_resources) == 1


def test_a_new_server_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = store(monkeypatch, ATTACHED)
    for spec in (
        request_of(),
        request_of(requested_destination=None),
        request_of(requested_destination=objects.Destination(host="host1")),
    ):
        assert not add(spec)
    assert reads == []


@pytest.mark.parametrize(
    ("attached", "task_state"),
    [
        (ATTACHED, task_states.REBUILDING),
        (
            attachment.with_state(
                ATTACHED, attachment.AttachmentState.DETACHING
            ),
            task_states.MIGRATING,
        ),
    ],
    ids=["an evacuation", "an interrupted detach"],
)
def test_a_request_that_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
    attached: attachment.Attachment,
    task_state: str,
) -> None:
    store(monkeypatch, attached, task_state=task_state)
    spec = moving()
    assert not add(spec)
    assert spec.requested_resources == []


def test_a_server_that_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its move goes on: most servers have no attached profile."""
    store(monkeypatch, error=exception.InstanceNotFound(instance_id=UUID))
    spec = moving()
    assert not add(spec)
    assert spec.requested_resources == []
