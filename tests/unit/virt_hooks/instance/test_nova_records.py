# SPDX-License-Identifier: Apache-2.0
"""Whether an operation of servers is in progress, in Nova's records."""

import uuid
from typing import Any

import pytest
from nova import objects
from nova.compute import task_states, vm_states

from virt_hooks.instance import nova_records

objects.register_all()
SERVER, OTHER, MOVE = (
    str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in "som"
)


def records(
    task_state: str | None = None,
    vm_state: str = vm_states.ACTIVE,
    status: str = "",
) -> nova_records.Records:
    instance: Any = objects.Instance(
        uuid=SERVER, task_state=task_state, vm_state=vm_state
    )
    move = objects.Migration(uuid=MOVE, instance_uuid=SERVER, status=status)
    return nova_records.Records(
        instances={SERVER: instance}, migrations=[move] if status else []
    )


@pytest.mark.parametrize(
    ("of_host", "is_idle"),
    [
        (records(), True),
        (records(task_state=task_states.DELETING), False),
        (records(vm_state=vm_states.ERROR), False),
        (records(status="migrating"), False),
        # Nova lists it as long as the server exists.
        (records(status="error"), True),
        (records(vm_state=vm_states.STOPPED), True),
    ],
)
def test_a_server_with_an_operation_is_not_idle(
    of_host: nova_records.Records, is_idle: bool
) -> None:
    assert nova_records.is_idle(of_host, {SERVER}) is is_idle


def test_a_migration_with_claims_is_not_idle() -> None:
    assert not nova_records.is_idle(records(status="finished"), {MOVE})


def test_operations_of_other_servers_do_not_count() -> None:
    of_host = records(task_states.DELETING, vm_states.ERROR, "migrating")
    assert nova_records.is_idle(of_host, {OTHER})
