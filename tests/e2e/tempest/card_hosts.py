# SPDX-License-Identifier: Apache-2.0
"""Two hosts with a card each whose mdevs serve flavors for Nova's own vGPUs.

Their names in Nova are those of their resource providers, as Tempest's
plugins expect. The card is an emulated T4, driven by a fake of its vendor's
driver; the mdevs are those of the real kernel.
"""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from tests.e2e.support.site import Site
from tests.lab.cloud import settings
from tests.lab.cloud.hosts import Host
from tests.lab.vm import topology

#: Numbers of fakenvidia.c by their profiles, which fit on one card.
TYPES = {"T4-4Q": "nvidia-232", "T4-4C": "nvidia-319"}
#: Traits by which flavors select a type.
TRAITS = {f"CUSTOM_LAB_{t[7:]}": t for t in TYPES.values()}
#: What a guest sees as the vendor of a vGPU.
VENDOR = "10de"
#: As many vGPUs whatever servers have, as a card has with Nova's own driver.
_DEVICE_SPEC = {"address": topology.T4_ADDRESS, "profiles": [*TYPES]}
_LIB = '. "$LAB_GUEST/lib.sh"'
_NUMBERS = (0, 1)
#: As many as the flavors of the tests have.
_PROCESSORS = 2


class CardHost(Host):
    """A host whose name in Nova is its node's."""

    @property
    def name(self) -> str:
        """Return the host's name in Nova."""
        return self.node


def find_host(lab: Site, number: int) -> CardHost:
    """Return one of the hosts."""
    return CardHost(lab.cloud, number, has_cards=True, processors=_PROCESSORS)


def overlay_path(lab: Site, number: int) -> pathlib.Path:
    """Return the configuration file of a host's nova-compute."""
    return lab.layout.etc / f"card-host-{number + 1}.conf"


def find_service(lab: Site, name: str) -> Any:
    """Return Nova's record of a host's nova-compute."""
    services = lab.api.compute.services(binary="nova-compute")
    (record,) = (service for service in services if service.host == name)
    return record


def set_dead(lab: Site, host: Host, is_dead: bool) -> None:
    """Report to Nova that a host is dead, or alive again."""
    record = find_service(lab, host.name)
    lab.api.compute.update_service_forced_down(record, forced=is_dead)


@contextlib.contextmanager
def running(lab: Site) -> Iterator[tuple[CardHost, CardHost]]:
    """Run both; the lab's own host is the first of them meanwhile."""
    first, second = (find_host(lab, number) for number in _NUMBERS)
    state = lab.layout.state / "card-hosts"
    shutil.rmtree(state, ignore_errors=True)
    common: settings.Ini = {
        "nova_accel": {
            "native_flavors": [json.dumps(line) for line in _replacements()],
            "device_spec": json.dumps(_DEVICE_SPEC),
        }
    }
    for host in (first, second):
        overlay = settings.render(common | _configure(host, state))
        overlay_path(lab, host.number).write_text(overlay)
    scheduler = lab.layout.etc / "card-hosts.conf"
    scheduler.write_text(settings.render(common))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, state, ignore_errors=True)
        own = Host(lab.cloud, 0)
        _remove(lab, own)
        undo.callback(_restore, own)
        lab.cloud.restart_scheduler(scheduler)
        undo.callback(lab.cloud.restart_scheduler)
        own.switch_off()
        for host in (first, second):
            host.switch_on(is_disk_kept=False)
            undo.callback(host.switch_off)
            host.run(f"{_LIB}; lab_nvidia mdev")
        for host in (first, second):
            undo.callback(_remove, lab, host)
        first.start_compute(overlay_path(lab, 0))
        # This maps both into Nova's cell.
        second.start(overlay_path(lab, 1))
        undo.callback(lab.clean)
        yield first, second


def _remove(lab: Site, host: Host) -> None:
    """End a nova-compute, and let Nova and Placement forget its host."""
    host.stop_compute()
    lab.api.compute.delete_service(find_service(lab, host.name))
    providers = lab.provider_names().values()
    nodes = {name.partition("_accel_")[0] for name in providers}
    assert host.node not in nodes, providers


def _restore(own: Host) -> None:
    """Start the lab's own host; Nova refuses the identity of a former one."""
    own.switch_on(is_disk_kept=False)
    (own.cloud.layout.state / "compute_id").unlink(missing_ok=True)
    own.start_compute()
    own.cloud.map_hosts()


def _configure(host: Host, state: pathlib.Path) -> settings.Ini:
    """Return what differs from the configuration of a lab's host."""
    place = state / host.node
    place.mkdir(parents=True)
    return {"DEFAULT": {"host": host.node, "state_path": str(place)}}


def _replacements() -> Iterator[dict[str, dict[str, str]]]:
    """Yield lines of native_flavors: with a trait, and without."""
    profiles = [
        {
            "resources_GPU:VGPU": "1",
            "resources_GPU:CUSTOM_GPU_MEMORY_MB": "4096",
            f"trait_GPU:CUSTOM_VGPU_NVIDIA_{name.replace('-', '_')}": (
                "required"
            ),
        }
        for name in TYPES
    ]
    native = {"resources:VGPU": "1"}
    for trait, profile in zip(TRAITS, profiles, strict=True):
        replaced = {**native, f"trait:{trait}": "required"}
        yield {"replace": replaced, "by": profile}
    yield {"replace": native, "by": profiles[0]}
