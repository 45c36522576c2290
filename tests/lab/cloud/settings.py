# SPDX-License-Identifier: Apache-2.0
"""The services' configuration files, as values and as text."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.cloud.installations import Installation
from tests.lab.cloud.layout import Layout
from tests.lab.cloud.options import Options
from tests.lab.vm.layout import STOCK

#: One configuration file: options by section; a list repeats the option.
Ini = dict[str, dict[str, str | list[str]]]

#: The compute host's name in nova.
HOST = "lab-compute"
#: Credentials of this cloud; it listens on the loopback only.
ADMIN = {
    "username": "admin",
    "password": "secret",
    "project_name": "admin",
    "user_domain_id": "default",
    "project_domain_id": "default",
}
_STOCK_FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "NUMATopologyFilter",
)
#: What the library may offer of the lab's devices: every mdev parent's
#: partitions, two of mtty's 24 ports so that the second server fills it, and
#: the whole functions that the library offers by itself.
_DEVICE_SPEC = ['{"address": "mtty", "max_slots": 2}']


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComputeHost:
    """A compute host's hardware, as nova-compute reaches it."""

    libvirt_uri: str
    virt_type: str
    prefix: tuple[str, ...] = ()
    #: Where it takes guests that migrate to it; none without a wire.
    migration_address: str = ""


def render(ini: Mapping[str, Mapping[str, str | list[str]]]) -> str:
    """Return the text of a configuration file."""
    lines = []
    for section, options in ini.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            values = [value] if isinstance(value, str) else value
            lines += [f"{name} = {item}" for item in values]
        lines.append("")
    return "\n".join(lines)


def database(layout: Layout, name: str) -> str:
    """Return the URL of a database shared by several processes."""
    path = layout.databases / f"{name}.sqlite"
    return f"sqlite:///{path}?timeout=60&plugin=lab_sqlite"


def clouds_yaml(
    layout: Layout, clouds: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Return a configuration of clients, the administrator's by default.

    :param clouds: by the name of each entry, how its credentials differ
        from the administrator's.
    """
    auth = {"auth_url": layout.url("keystone", "/v3"), **ADMIN}
    entries = {
        name: {"region_name": "RegionOne", "auth": {**auth, **changes}}
        for name, changes in (clouds or {"lab": {}}).items()
    }
    return json.dumps({"clouds": entries}, indent=2)


def simulated_state(layout: Layout, name: str) -> Path:
    """Return the state directory of a simulated host's nova-compute."""
    return layout.state / "simulated" / name


def simulated_compute(
    layout: Layout, name: str, device_spec: Sequence[str]
) -> str:
    """Return the configuration of a host that runs nothing.

    Its servers are in Nova's driver for tests, its devices in a directory
    that placement-sync reads; nova-compute itself knows nothing of them.
    """
    ini = nova_common(layout)
    state = simulated_state(layout, name)
    ini["DEFAULT"] |= {
        "host": name,
        "state_path": str(state),
        "instances_path": str(state / "instances"),
        "compute_driver": "lab_simulated.SimulatedDriver",
        "reserved_host_memory_mb": "0",
        "update_resources_interval": "300",
    }
    ini["nova_accel"] = {
        "device_spec": list(device_spec),
        "state_dir": str(state / "accel"),
    }
    return render(ini)


def host_name(number: int) -> str:
    """Return the name in Nova of a compute host that runs guests."""
    return f"{HOST}-{number + 1}" if number else HOST


def further_compute(
    layout: Layout, options: Options, host: ComputeHost, number: int
) -> str:
    """Return the configuration of a further host that runs guests.

    It has the lab's own instances directory.
    """
    name, state = host_name(number), layout.state / host_name(number)
    ini = _nova_compute(layout, options, host, f"nova-compute-{number + 1}")
    (state / "locks").mkdir(parents=True, exist_ok=True)
    ini["DEFAULT"] |= {"host": name, "state_path": str(state)}
    ini["oslo_concurrency"] = {"lock_path": str(state / "locks")}
    if "nova_accel" in ini:
        ini["nova_accel"]["state_dir"] = str(state / "accel")
    return render(ini)


def write_helper(layout: Layout, nova: Installation, conf: Path) -> Path:
    """Write a configuration file with an installation's own helper.

    :param conf: the configuration of the nova-compute that starts it.
    """
    helper = nova.programs / "privsep-helper"
    path = layout.etc / f"{conf.stem}-helper.conf"
    command = f"{helper} --config-file {conf}"
    path.write_text(render({"nova_sys_admin": {"helper_command": command}}))
    return path


def write_settings(
    layout: Layout, options: Options, host: ComputeHost
) -> None:
    """Write every configuration file of the cloud."""
    files = {
        "keystone.conf": render(_keystone(layout)),
        "placement.conf": render(_placement(layout)),
        "glance-api.conf": render(_glance(layout)),
        "nova.conf": render(_nova_control(layout, options)),
        "nova-compute.conf": render(_nova_compute(layout, options, host)),
        "clouds.yaml": clouds_yaml(layout),
        "api-paste.ini": _packaged(layout, "nova/api-paste.ini"),
        "glance-api-paste.ini": _packaged(
            layout, "glance/glance-api-paste.ini"
        ),
    }
    for name, text in files.items():
        (layout.etc / name).write_text(text)


def _packaged(layout: Layout, name: str) -> str:
    """Return a configuration file that a service's wheel installed."""
    return Path(layout.venv / "etc" / name).read_text()


def _credentials(layout: Layout) -> dict[str, str | list[str]]:
    return {
        "auth_type": "password",
        "auth_url": layout.url("keystone", "/v3"),
        "region_name": "RegionOne",
        **ADMIN,
    }


def _token_check(layout: Layout) -> dict[str, str | list[str]]:
    return {
        **_credentials(layout),
        "www_authenticate_uri": layout.url("keystone", "/v3"),
        "service_token_roles_required": "true",
    }


def _keystone(layout: Layout) -> Ini:
    return {
        "database": {"connection": database(layout, "keystone")},
        "token": {"provider": "fernet"},
        "fernet_tokens": {"key_repository": str(layout.etc / "fernet")},
        "credential": {"key_repository": str(layout.etc / "credential")},
        # Without a cache each token costs seconds: every call pays it.
        "cache": {"enabled": "true", "backend": "dogpile.cache.memory"},
        "identity": {"password_hash_rounds": "4"},
    }


def _placement(layout: Layout) -> Ini:
    return {
        "placement": {
            # A retry inside one transaction checks the capacity against its
            # old snapshot and can allocate more than there is.
            "allocation_conflict_retry_count": "1",
        },
        "placement_database": {
            "connection": database(layout, "placement"),
            "sync_on_startup": "true",
        },
        "keystone_authtoken": _token_check(layout),
    }


def _glance(layout: Layout) -> Ini:
    images = layout.images
    return {
        "DEFAULT": {
            "enabled_backends": "disk:file",
            "workers": "0",
            "node_staging_uri": f"file://{images}/staging",
        },
        "database": {"connection": database(layout, "glance")},
        "glance_store": {"default_backend": "disk"},
        "disk": {"filesystem_store_datadir": str(images)},
        "os_glance_staging_store": {
            "filesystem_store_datadir": f"{images}/staging"
        },
        "os_glance_tasks_store": {
            "filesystem_store_datadir": f"{images}/tasks"
        },
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": str(layout.etc / "glance-api-paste.ini"),
        },
        "keystone_authtoken": _token_check(layout),
    }


def nova_common(layout: Layout) -> Ini:
    """Return what all of Nova's services are configured with."""
    credentials = _credentials(layout)
    rabbit = f"rabbit://guest:guest@127.0.0.1:{layout.port('rabbitmq')}/"
    return {
        "DEFAULT": {
            "debug": "true",
            "log_options": "false",
            "host": HOST,
            "state_path": str(layout.state),
            "instances_path": str(layout.instances),
            "transport_url": rabbit,
            "my_ip": "127.0.0.1",
            "rpc_response_timeout": "300",
            # The only host must not count as down because it is slow.
            "service_down_time": "3600",
            # No address would ever change behind nova's back.
            "heal_instance_info_cache_interval": "-1",
            # Blank guests do not answer a request to shut down.
            "shutdown_timeout": "0",
            # There may be one host only.
            "allow_resize_to_same_host": "true",
            # Offloading is asked for.
            "shelved_offload_time": "-1",
        },
        "oslo_concurrency": {"lock_path": str(layout.state / "locks")},
        "oslo_messaging_rabbit": {"rabbit_quorum_queue": "false"},
        "glance": {
            "endpoint_override": layout.url("glance"),
            "service_type": "image",
        },
        "neutron": {
            "endpoint_override": layout.url("network"),
            **credentials,
        },
        "placement": {
            "endpoint_override": layout.url("placement"),
            **credentials,
        },
        "service_user": {"send_service_user_token": "true", **credentials},
        "keystone_authtoken": _token_check(layout),
        # As in each cloud whose hosts have several releases.
        "upgrade_levels": {"compute": "auto"},
        "vnc": {"enabled": "false"},
    }


def _nova_control(layout: Layout, options: Options) -> Ini:
    """Return nova.conf: the API, the conductor and the scheduler."""
    ini = nova_common(layout)
    ini["api_database"] = {"connection": database(layout, "nova_api")}
    ini["database"] = {"connection": database(layout, "nova_cell1")}
    ini["conductor"] = {"workers": "1"}
    ini["scheduler"] = {"workers": "1"}
    ini["wsgi"] = {"api_paste_config": str(layout.etc / "api-paste.ini")}
    if options.activation != "off":
        ini["filter_scheduler"] = {
            "available_filters": [
                "nova.scheduler.filters.all_filters",
                "filters.accelerator_filter.AcceleratorFilter",
            ],
            "enabled_filters": ",".join(
                (*_STOCK_FILTERS, "AcceleratorFilter")
            ),
            "weight_classes": ",".join(
                (
                    "nova.scheduler.weights.all_weighers",
                    "filters.accelerator_weigher.AcceleratorWeigher",
                )
            ),
        }
    return ini


def _nova_compute(
    layout: Layout,
    options: Options,
    host: ComputeHost,
    name: str = "nova-compute",
) -> Ini:
    """Return nova-compute's file: no database is named in it."""
    ini = nova_common(layout)
    own = ini["DEFAULT"]
    own |= {
        "resource_tracker_workers": "1",
        # A pass reads every PCI function through libvirt: seconds of an
        # emulated processor, which servers that boot would wait for. The
        # default is every minute.
        "update_resources_interval": "300",
        "reserved_host_memory_mb": "0",
        "initial_cpu_allocation_ratio": "16.0",
        "initial_ram_allocation_ratio": "4.0",
    }
    if options.activation == "config-source":
        own["config_source"] = "accel"
        ini["accel"] = {"driver": "nova_accel"}
    elif options.activation == "compute-driver":
        own["compute_driver"] = "accel.AccelLibvirtDriver"
    else:
        own["compute_driver"] = "libvirt.LibvirtDriver"
    if options.activation != "off":
        ini["nova_accel"] = {
            "device_spec": _DEVICE_SPEC,
            "state_dir": str(layout.accel),
            # guest/qemu of another root's VM is what the option asks for.
            "live_migration_without_iommufd": str(options.root != STOCK),
        }
    ini["libvirt"] = {
        "virt_type": host.virt_type,
        "cpu_mode": "none",
        "connection_uri": host.libvirt_uri,
        "images_type": "qcow2",
        # All memory of a guest with a VF counts as written (guest/qemu), and
        # takes seconds: Nova's own values for vGPUs.
        "live_migration_downtime": "500000",
        "live_migration_downtime_steps": "3",
        "live_migration_downtime_delay": "3",
        # Guests whose processor is emulated twice take their time.
        "device_detach_timeout": "60",
    }
    if host.migration_address:
        address = {"live_migration_inbound_addr": host.migration_address}
        ini["libvirt"] |= address
    helper = layout.program("privsep-helper")
    conf = layout.etc / f"{name}.conf"
    ini["nova_sys_admin"] = {
        "helper_command": f"{helper} --config-file {conf}"
    }
    return ini
