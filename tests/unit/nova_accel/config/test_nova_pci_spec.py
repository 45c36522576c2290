# SPDX-License-Identifier: Apache-2.0
"""Lines of Nova's own option name the functions that Nova gives away."""

import json
import os
from collections.abc import Mapping
from typing import Any
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st
from nova.pci import utils as nova_utils
from nova.pci import whitelist as nova_whitelist

from nova_accel import errors
from nova_accel.cli import assigned_functions
from nova_accel.discovery.capture import (
    RecordedDirectory,
    RecordedFiles,
    RecordedLink,
)
from nova_accel.host import nova_devices
from nova_accel.host.sysfs import fs, host_reader
from nova_accel.model import pci
from tests.support.hosts import prepared

GPU, L40S, VF = prepared.GPU, prepared.L40S, "0000:41:00.4"


def matches(line: str, host: host_reader.HostReader) -> set[str]:
    functions = assigned_functions.list_matches(line, host)
    return {str(function.address) for function in functions}


@pytest.fixture(name="host", scope="module")
def make_host() -> host_reader.HostReader:
    change: prepared.Change = {
        "/sys/class/net/enp65s0": RecordedLink(
            f"../../devices/pci/{L40S}/net/enp65s0"
        ),
        f"/sys/devices/pci/{L40S}/net/enp65s0/device": RecordedLink(
            f"../../../{L40S}"
        ),
    }
    return prepared.changed(change).reader


@pytest.mark.parametrize(
    "line",
    [
        '{"vendor_id": "10de", "product_id": "2236"}',
        '{"vendor_id": "10DE", "product_id": "2236", "managed": "yes"}',
        '[{"vendor_id": "15b3"}, {"vendor_id": "10de", "product_id": "2236"}]',
        f'{{"address": "{GPU}"}}',
        '{"address": "65:00.0"}',
        '{"address": "65:00", "vendor_id": "10de"}',
        '{"address": "*:65:00.*", "vendor_id": "*"}',
        '{"address": "0:65:0.0"}',
        '{"address": {"domain": ".*", "bus": "65", "slot": "00"}}',
        '{"address": {"bus": "6[0-9]", "function": "[0-7]"}}',
        '{"address": {"bus": "6"}, "vendor_id": "10de"}',
        '{"address": "65:", "remote_managed": "true", "one_time_use": "yes"}',
    ],
)
def test_each_form_names_the_function(
    line: str, host: host_reader.HostReader
) -> None:
    assert matches(line, host) == {GPU}


@pytest.mark.parametrize(
    "line",
    [
        f'{{"address": "{L40S}"}}',
        '{"address": {"domain": "0000", "bus": "41", "slot": "00",'
        ' "function": "0"}}',
        '{"devname": "enp65s0"}',
        '{"vendor_id": "10de", "product_id": "26b9"}',
    ],
)
def test_a_physical_function_includes_its_virtual_ones(
    line: str, host: host_reader.HostReader
) -> None:
    assert matches(line, host) == {L40S, VF, "0000:41:00.5"}


@pytest.mark.parametrize(
    "line",
    [
        '{"devname": "eth9"}',
        '{"address": "66:00.0"}',
        '{"address": {"bus": "^5"}}',
        '{"vendor_id": "10de", "product_id": "2236", "address": "41:00.0"}',
        '{"vendor_id": "abcd"}',
        "[]",
    ],
)
def test_other_functions_are_not_named(
    line: str, host: host_reader.HostReader
) -> None:
    assert matches(line, host) == set()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("65:00.0", "JSON"),
        ('"65:00.0"', "object"),
        ("[1]", "object"),
        ('{"vendor_id": 4318}', "vendor_id"),
        ('{"product_id": "12345"}', "product_id"),
        ('{"address": "0000:65:00:00.0"}', "address"),
        ('{"address": "65:2?.0"}', "slot"),
        ('{"address": "65:00.8"}', "function"),
        ('{"address": ["65:00.0"]}', "address"),
        ('{"address": {"bus": "["}}', "regular"),
        ('{"address": {"bus": 65}}', "regular"),
        ('{"address": "65:00.0", "devname": "eth0"}', "devname"),
    ],
)
def test_a_line_that_nova_refuses_is_an_error(
    line: str, word: str, host: host_reader.HostReader
) -> None:
    functions = {str(f.address): f for f in host.all_functions()}
    assert nova_devices.match(line, functions) is None
    with pytest.raises(errors.ConfigurationError) as refused:
        assigned_functions.list_matches(line, host)
    assert "[pci] device_spec" in str(refused.value)
    assert word in refused.value.hint


# -- the same as Nova's own parser ------------------------------------------


def function_at(address: str, **values: Any) -> pci.PciFunction:
    return pci.PciFunction(address=pci.parse_address(address), **values)


def list_functions() -> Mapping[str, pci.PciFunction]:
    pf = function_at(
        "0000:41:00.0",
        vendor="10de",
        product="26b9",
        class_code=0x030200,
        total_vfs=2,
    )
    functions = [
        pf,
        *(
            function_at(
                f"0000:41:00.{n}",
                vendor="10de",
                product="26ba",
                class_code=0x030200,
                physfn=pf.address,
            )
            for n in (4, 5)
        ),
        *(
            function_at(
                address, vendor=vendor, product="1eb8", class_code=0x030200
            )
            for address, vendor in (
                ("0000:04:00.0", "10de"),
                ("0001:41:01.0", "1002"),
                ("10000:41:00.0", "10de"),
            )
        ),
    ]
    return {str(f.address): f for f in functions}


FUNCTIONS = list_functions()
NO_FUNCTIONS = {host_reader.FUNCTIONS: RecordedDirectory()}


def is_physical(domain: str, bus: str, slot: str, function: str) -> bool:
    address = f"{domain}:{bus}:{slot}.{function}"
    return address in FUNCTIONS and FUNCTIONS[address].total_vfs > 0


def parts(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


GLOBS = st.one_of(
    st.builds(
        "{}:{}:{}.{}".format,
        parts("0000", "*", "1", "0", ""),
        parts("41", "*", "4", "04", " 41 "),
        parts("00", "*", "1", "0", ""),
        parts("0", "4", "*", ""),
    ),
    parts("41:00.0", "41:00", "00", ".0", "*", "", "41:00.", "4g:00.0", "."),
    st.text("0:.*41", max_size=8),
)
EXPRESSIONS = st.fixed_dictionaries(
    {},
    optional={
        "domain": parts(".*", "0000", "0", "000[01]", "1"),
        "bus": parts("41", "4", "0?4", ".*", "4[01]", "", "("),
        "slot": parts("00", "0", ".*", "01"),
        "function": parts("0", "[0-4]", ".*", "[45]"),
    },
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "vendor_id": parts("10de", "*", "1002", "10DE", " 10de ", "x"),
        "product_id": parts("26b9", "26ba", "*", "1eb8"),
        "address": st.one_of(GLOBS, EXPRESSIONS, st.none()),
        "managed": parts("yes", "no"),
    },
)


@hypothesis.given(st.one_of(SPECS, st.lists(SPECS, max_size=3)))
def test_the_grammar_is_that_of_nova_s_parser(value: object) -> None:
    line = json.dumps(value)
    host = host_reader.HostReader(source=RecordedFiles({}))
    with mock.patch.object(nova_utils, "is_physical_function", is_physical):
        by_nova = nova_devices.match(line, FUNCTIONS)
    try:
        by_grammar = assigned_functions.match_with_grammar(
            line, FUNCTIONS, host
        )
    except errors.ConfigurationError:
        assert by_nova is None
    else:
        assert by_grammar == by_nova


@pytest.mark.parametrize("root", ["/", os.path.dirname(__file__)])
def test_nova_s_parser_decides_about_this_machine_only(root: str) -> None:
    source = fs.DiskSource(root)
    host = host_reader.HostReader(files=fs.Files(RecordedFiles(NO_FUNCTIONS)))
    host.files.source = source
    with mock.patch.object(nova_whitelist, "Whitelist") as parser:
        assigned_functions.list_matches("{}", host)
    assert parser.called == (root == "/")
