# SPDX-License-Identifier: Apache-2.0
"""Extra specs are parsed into the same groups as in Nova."""

from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import utils

from nova_accel.model import flavors
from tests.support import examples

suffixes = st.from_regex(r"[a-zA-Z0-9_-]{0,8}", fullmatch=True)
kinds = st.sampled_from(["resources", "trait", "resource", "traits", "hw"])
words = st.sampled_from(["VGPU", "PGPU", "CUSTOM_A", "CUSTOM_B"])
keys = st.builds("{}{}:{}".format, kinds, suffixes, words)
values = st.sampled_from(
    "0 1 2 16 +1 01 1_0 -1 one required forbidden Required".split()
)
values |= st.sampled_from(["", " 1", "1 "])


def nova_reads(
    extra_specs: dict[str, str],
) -> dict[str, tuple[dict[str, int], set[str], set[str]]]:
    request = utils.ResourceRequest()
    request._process_extra_specs(objects.Flavor(extra_specs=extra_specs))
    return {
        suffix or "": (
            dict(group.resources),
            set(group.required_traits),
            set(group.forbidden_traits),
        )
        for suffix, group in request._rg_by_id.items()
    }


@given(st.dictionaries(keys, values, max_size=8))
@settings(deadline=None, max_examples=examples.examples(25))
def test_nova_reads_the_same(extra_specs: dict[str, str]) -> None:
    objects.register_all()
    groups = {
        group.suffix: (
            dict(group.resources),
            set(group.required),
            set(group.forbidden),
        )
        for group in flavors.parse_groups(extra_specs)
    }
    nothing: tuple[dict[str, int], set[str], set[str]] = ({}, set(), set())
    nova_groups = nova_reads(extra_specs)
    for suffix in groups.keys() | nova_groups.keys():
        assert groups.get(suffix, nothing) == nova_groups.get(suffix, nothing)
