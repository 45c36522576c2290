# SPDX-License-Identifier: Apache-2.0
"""One-time steps of the services, several manage commands per interpreter.

Importing nova or keystone takes seconds; each step imports once and forks
for every command, because the commands keep global state.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

_ETC = os.environ["OS_NOVA_CONFIG_DIR"]
#: The hardware may have to be made first, which takes minutes.
_HOST_SECONDS = 900.0


def _forked(main: Callable[[], int | None], *argv: str) -> None:
    """Run a manage command in a child; raise SystemExit when it fails."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{' '.join(argv)} failed")
        return
    sys.argv = list(argv)
    code = 1
    try:
        code = int(main() or 0)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop))
    except BaseException:  # the child must not return into the parent's code
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def keystone(url: str) -> None:
    """Make keystone's schema, keys, administrator and first catalog entry."""
    from keystone.cmd import manage

    def run(*argv: str) -> None:
        conf = f"--config-file={_ETC}/keystone.conf"
        _forked(manage.main, "keystone-manage", conf, *argv)

    owner = ("--keystone-user", "root", "--keystone-group", "root")
    run("db_sync")
    run("fernet_setup", *owner)
    run("credential_setup", *owner)
    run(
        "bootstrap",
        *("--bootstrap-password", "secret"),
        *("--bootstrap-username", "admin"),
        *("--bootstrap-project-name", "admin"),
        *("--bootstrap-region-id", "RegionOne"),
        *("--bootstrap-service-name", "keystone"),
        *("--bootstrap-admin-url", url),
        *("--bootstrap-internal-url", url),
        *("--bootstrap-public-url", url),
    )


def catalog(*entries: str) -> None:
    """Register services, each given as ``type=url``."""
    import openstack

    cloud: Any = openstack.connect()
    for entry in entries:
        kind, _, url = entry.partition("=")
        service = cloud.identity.create_service(type=kind, name=kind)
        cloud.identity.create_endpoint(
            service_id=service.id,
            interface="public",
            region_id="RegionOne",
            url=url,
        )
    # keystonemiddleware accepts a service token only with this role in it.
    cloud.identity.assign_project_role_to_user(
        cloud.identity.find_project("admin"),
        cloud.identity.find_user("admin"),
        cloud.identity.find_role("service"),
    )


def nova(cell0: str) -> None:
    """Make nova's three databases and its two cells."""
    from nova.cmd import manage

    def run(*argv: str) -> None:
        conf = f"--config-file={_ETC}/nova.conf"
        _forked(manage.main, "nova-manage", conf, *argv)

    run("api_db", "sync")
    run("cell_v2", "map_cell0", "--database_connection", cell0)
    run("db", "sync")
    run("cell_v2", "create_cell", "--name", "cell1")


def discover() -> None:
    """Map the compute host into its cell as soon as it has registered."""
    from nova import config, context, objects
    from nova.objects import host_mapping

    config.parse_args(["lab", f"--config-file={_ETC}/nova.conf"])
    objects.register_all()
    admin = context.get_admin_context()
    deadline = time.monotonic() + _HOST_SECONDS
    while not (mappings := host_mapping.discover_hosts(admin)):
        if time.monotonic() > deadline:
            raise SystemExit(
                f"no compute host registered within {_HOST_SECONDS:.0f} s"
            )
        time.sleep(0.3)
    sys.stdout.write(f"mapped {[mapping.host for mapping in mappings]}\n")


def seed(image: str, flavor: str) -> None:
    """Make the image and the flavor that a server needs."""
    import openstack

    cloud: Any = openstack.connect()
    if not cloud.image.find_image(image):
        cloud.image.create_image(
            name=image,
            data=bytes(1 << 20),
            disk_format="raw",
            container_format="bare",
            visibility="public",
        )
    if not cloud.compute.find_flavor(flavor):
        cloud.compute.create_flavor(name=flavor, ram=64, vcpus=1, disk=1)


_STEPS: dict[str, Callable[..., None]] = {
    "keystone": keystone,
    "catalog": catalog,
    "nova": nova,
    "discover": discover,
    "seed": seed,
}

if __name__ == "__main__":
    _STEPS[sys.argv[1]](*sys.argv[2:])
