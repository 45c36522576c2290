# SPDX-License-Identifier: Apache-2.0
"""Each kind of document that outlives a process has a version.

Records of another release are read if their version is the same, with fields
that only one of the two knows, and refused with one line otherwise.
"""

import ast
import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

import pytest

from nova_accel.discovery import capture
from nova_accel.doctor.ansible import manifests
from nova_accel.host.bitstreams import bitstream_cache
from nova_accel.host.state import adoption_plan, claims_file, notes
from nova_accel.model import attachment, json_codec, rpc_names, usage
from placement_sync.daemon import status
from placement_sync.fleet.gateway import methods
from placement_sync.fleet.removal import removal_files
from placement_sync.fleet.stock import stock_file
from placement_sync.planning.defragmentation import move_plan
from tests.unit.docs import pages
from tests.unit.house import sources
from virt_hooks.guest.topology import clusters
from virt_hooks.ironic import node_report
from virt_hooks.operations.migration import live_migration_wire

_KINDS = [
    kind for kind in vars(notes).values() if isinstance(kind, notes.Kind)
]


def _name(kind: notes.Kind[Any]) -> str:
    if kind is notes.BOOKED:
        return "allocations of rebuilt servers"
    return kind.directory


#: Formats by the names that the upgrade page has for their records.
FORMATS: dict[str, json_codec.Format[Any]] = {
    "driver manifests": manifests._FORMAT,
    "cached bitstreams": bitstream_cache._FORMAT,
    "adoption plan": adoption_plan.FORMAT,
    "claims file": claims_file._FORMAT,
    "attached profiles": attachment._FORMAT,
    "usage samples": usage.FORMAT,
    "record of a removal": removal_files._FORMAT,
    "stock of flavors": stock_file.FORMAT,
    "plan of moves": move_plan.FORMAT,
    "status of passes": status.FORMAT,
    "report of a node": node_report.FORMAT,
    "host of a live migration": (live_migration_wire._FORMAT),
    "tree of a guest in it": clusters._FORMAT,
    **{_name(kind): (notes.NoteStore(None, kind)._format) for kind in _KINDS},
}


# A text that each pattern of a field accepts.
_SAMPLES = {str: "1000", int: 3, float: 0.5, bool: True}


def build(kind: Any) -> Any:
    """Return a value of a type in which no field is empty."""
    if kind in _SAMPLES:
        return _SAMPLES[kind]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(
            **{
                field.name: build(hints[field.name])
                for field in dataclasses.fields(kind)
                if field.init
            }
        )
    if isinstance(kind, enum.EnumType):
        return next(iter(kind))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return build(arguments[0])
    items = [build(each) for each in arguments if each is not Ellipsis]
    if origin is not None and issubclass(origin, Mapping):
        return dict([items])
    assert origin is not None, kind
    return origin(items)


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_of_the_release_before_or_after_is_read(name: str) -> None:
    """The one after may add fields; to the one before some are not known."""
    form = FORMATS[name]
    record = build(form.kind)
    fields = json.loads(form.encode(record))
    assert form.decode_fields(fields | {"colour": "red"}) == record
    for field in dataclasses.fields(form.kind):
        if field.default is not dataclasses.MISSING:
            before = {k: v for k, v in fields.items() if k != field.name}
            expected = dataclasses.replace(
                record, **{field.name: field.default}
            )
            assert form.decode_fields(before) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_of_another_version_is_refused_with_one_line(
    name: str,
) -> None:
    form = FORMATS[name]
    fields = json.loads(form.encode(build(form.kind)))
    later = form.version + 1
    assert fields[form.key] == form.version
    with pytest.raises(json_codec.UnknownVersionError) as caught:
        form.decode(json.dumps(fields | {form.key: later}))
    assert str(caught.value) == (
        f"its {form.key} is {later}, and this nova-accel reads"
        f" {form.version}; use the release that wrote it"
    )
    if form.unversioned is None:
        with pytest.raises(json_codec.UnknownVersionError):
            form.decode_fields({k: fields[k] for k in fields if k != form.key})


def test_each_format_of_the_code_is_in_the_table() -> None:
    """Of notes there is one call, for all of their kinds."""
    calls = [
        path.name
        for path in sources.FILES
        if path.suffix == ".py"
        and path.relative_to(sources.ROOT).parts[0] not in ("tests", "tools")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "json_codec.Format"
    ]
    assert "notes.py" in calls
    assert len(calls) - 1 + len(_KINDS) == len(FORMATS)


def test_the_page_has_the_version_of_each_kind() -> None:
    page = (pages.MANUAL / "admin/upgrade.rst").read_text()
    others = {
        "archive of a host": capture.FORMAT,
        "RPC of nova-compute": rpc_names.FAULTS_VERSION,
        "gateway": methods.build_path("show_version", "node1").split("/")[1],
    }
    versions = {name: form.version for name, form in FORMATS.items()} | others
    for name, version in versions.items():
        assert f"   * - {name}\n     - {version}\n" in page, name
