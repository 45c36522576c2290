# SPDX-License-Identifier: Apache-2.0
"""Allocations for Nova's tracker, read by each way of using them."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from virt_hooks.report import server_allocations

ROWS = {"server": {"allocations": {"card": {"resources": {"VGPU": 1}}}}}
_UNREAD = {
    "__class__",
    "__class_getitem__",
    "__deepcopy__",
    "__delattr__",
    "__dir__",
    "__doc__",
    "__format__",
    "__ge__",
    "__getattribute__",
    "__getstate__",
    "__gt__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__le__",
    "__lt__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__setattr__",
    "__sizeof__",
    "__str__",
    "__subclasshook__",
    "fromkeys",
}


class Client:
    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    def get_allocations_for_provider_tree(
        self, context: Any, nodename: str
    ) -> dict[str, Any]:
        self.reads += 1
        if self.error:
            raise self.error
        return copy.deepcopy(ROWS)


def read(client: Client) -> Any:
    server_allocations.read_on_use(client)
    return client.get_allocations_for_provider_tree(None, nodename="node")


@pytest.mark.parametrize(
    "use",
    [
        dict,
        list,
        len,
        copy.copy,
        copy.deepcopy,
        repr,
        lambda rows: rows["server"],
        lambda rows: rows.get("server"),
        lambda rows: "server" in rows,
        lambda rows: list(rows.items()),
        lambda rows: rows | {"other": {}},
        lambda rows: {**rows},
        lambda rows: rows == ROWS,
        bool,
    ],
)
def test_each_use_reads_once_and_sees_all(use: Callable[[Any], Any]) -> None:
    client = Client()
    rows = read(client)
    assert client.reads == 0
    assert use(rows) == use(copy.deepcopy(ROWS))
    assert use(rows) == use(copy.deepcopy(ROWS))
    assert client.reads == 1
    assert json.loads(json.dumps(rows)) == ROWS


def test_no_method_of_a_dictionary_skips_the_reading() -> None:
    own = vars(server_allocations.TrackerAllocations)
    assert {*dir(dict)} - own.keys() <= _UNREAD


def test_a_change_is_one_of_the_allocations_that_were_read() -> None:
    rows = read(Client())
    rows["other"] = {}
    assert dict(rows) == {**ROWS, "other": {}}


def test_an_error_reaches_the_user_and_the_next_use_reads_again() -> None:
    client = Client()
    rows = read(client)
    client.error = ValueError("no such node")
    with pytest.raises(ValueError, match="no such node"):
        rows.values()
    client.error = None
    assert list(rows) == ["server"]


def test_a_client_is_changed_once() -> None:
    client = Client()
    read(client)
    list(read(client))
    assert client.reads == 1
