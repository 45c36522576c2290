# SPDX-License-Identifier: Apache-2.0
"""Hosts with random faults are described and captured."""

import contextlib
import os
import pathlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel.cli import inspect_output
from nova_accel.config import policy
from nova_accel.discovery import capture, scan
from nova_accel.host.sysfs import host_reader
from nova_accel.inventory import tree_builder
from tests.hosts import build, look
from tests.support import examples, strategies

TEXTS = ("", "\n", "-1\n", "0xffff\n", "any text\n", "9" * 5000, "\0\0")
faults = st.sampled_from([*TEXTS, *({"fault": name} for name in build.FAULTS)])
rules = st.sampled_from(
    [
        policy.DeviceRules(),
        policy.parse_rules(['{"vendor_id": "10de", "use": "passthrough"}']),
        policy.parse_rules(['{"address": "*:*", "use": "passthrough"}']),
    ]
)


def places(root: pathlib.Path) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(base, name), root / "sys")
        for base, directories, files in os.walk(root / "sys")
        for name in (*directories, *files)
    )


@settings(max_examples=examples.examples(40), deadline=None)
@given(
    st.sampled_from(look.NAMES),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), faults), max_size=12
    ),
    rules,
)
def test_a_host_with_faults_is_reported_and_captured(
    name: str,
    chosen: list[tuple[float, str | dict[str, str]]],
    allowed: policy.DeviceRules,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = look.make(name, pathlib.Path(directory) / "host")
        paths = places(root)
        for share, fault in chosen:
            # An earlier fault may have replaced this path.
            with contextlib.suppress(OSError, RuntimeError):
                place = paths[int(share * len(paths))]
                build.break_path(root, place, fault)
        host = host_reader.HostReader(root)
        state = scan.read(host, look.DRIVERS, allowed)
        assert not [p for p in state.problems if "wrote" in p.reason]
        tree = tree_builder.build_tree(strategies.ROOT, state, allowed)
        assert inspect_output.as_text(
            state, tree, inspect_output.HostContext()
        )
        for node in tree.nodes:
            for record in node.inventories.values():
                assert 0 <= record.reserved <= record.total
        archive = os.path.join(directory, "host.tar.gz")
        capture.save(host, archive, {"format": capture.FORMAT})
        again = host_reader.HostReader(source=capture.load(archive)[0])
        assert scan.read(again, look.DRIVERS, allowed) == state
