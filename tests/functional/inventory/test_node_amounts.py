# SPDX-License-Identifier: Apache-2.0
"""Node amounts of a server equal those that Nova allocates."""

from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import utils

from nova_accel.model import providers
from placement_sync.audit import node_amounts
from placement_sync.client import nova_api
from tests.support import examples

CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_LICENCE")
CHARGED = {"VGPU": 2, "CUSTOM_GPU_MEMORY_MB": 8192}
GROUPS = {
    "resources_A:VGPU": "1",
    "resources_B:VGPU": "1",
    "resources_A:CUSTOM_GPU_MEMORY_MB": "4096",
    "resources_B:CUSTOM_GPU_MEMORY_MB": "4096",
}
sizes = st.integers(0, 5000)
# As Nova's API embeds a flavor in a server.
flavors = st.fixed_dictionaries(
    {
        "vcpus": st.integers(1, 8),
        "ram": sizes,
        "disk": sizes,
        "ephemeral": sizes,
        "swap": sizes,
    }
)
overrides = st.dictionaries(
    st.sampled_from([f"resources:{name}" for name in CLASSES]),
    st.sampled_from(["0", "1", "7", "none"]),
)


@given(flavors, overrides, st.booleans())
@settings(deadline=None, max_examples=examples.examples(50))
def test_nova_allocates_the_same(
    flavor: dict[str, int], specs: dict[str, str], is_volume_backed: bool
) -> None:
    objects.register_all()
    nova_amounts = utils.resources_from_flavor_and_bfv(
        objects.Flavor(
            vcpus=flavor["vcpus"],
            memory_mb=flavor["ram"],
            root_gb=flavor["disk"],
            ephemeral_gb=flavor["ephemeral"],
            swap=flavor["swap"],
            extra_specs=GROUPS | specs,
        ),
        is_volume_backed,
    )
    body = {
        "id": "s",
        "image": "" if is_volume_backed else {"id": "i"},
        "flavor": flavor | {"extra_specs": GROUPS | specs},
    }

    amounts = node_amounts.compute(
        read_server(body, is_volume_backed),
        dict.fromkeys(CLASSES, providers.Inventory(total=10**6)),
        CHARGED,
    )

    assert amounts | CHARGED == nova_amounts


def read_server(body: object, is_volume_backed: bool) -> nova_api.Server:
    """Return a server as the audit reads it from Nova's API."""

    class NovaClient:
        """Nova's API with this server and one attached data volume."""

        def read(self, path: str, parse: object) -> object:
            assert callable(parse)
            if path.endswith("/os-volume_attachments"):
                return parse({"volumeAttachments": [{"device": "/dev/vdb"}]})
            return parse({"servers": [body]})

    client: object = NovaClient()
    assert isinstance(body, dict)
    body["OS-EXT-SRV-ATTR:root_device_name"] = "/dev/vda"
    servers, reason = nova_api.read_servers(
        client,  # type: ignore[arg-type]
        "host",
        (),
        (),
        unallocated={"s"},
    )
    server = servers["s"]
    assert server is not None
    assert not reason
    assert server.is_volume_backed == is_volume_backed
    return server
