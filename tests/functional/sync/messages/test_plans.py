# SPDX-License-Identifier: Apache-2.0
"""Messages of ``openstack accel plan capacity``, each with its real cause."""

from nova_accel.config import policy
from nova_accel.discovery import capture, plugin, scan
from nova_accel.host.sysfs import host_reader
from tests.functional.sync.fleet import test_fleet
from tests.functional.sync.messages.test_cloud import (  # noqa: F401
    Cloud,
    cloud,
    empty,
)
from tests.hosts import look

_LARGE = {
    "resources_GPU1:VGPU": "1",
    "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "40960",
    "trait_GPU1:CUSTOM_VGPU_NVIDIA_A100D_40C": "required",
}


def test_plans_of_a_cloud(cloud: Cloud) -> None:  # noqa: F811
    site = cloud.site
    site.nova.add_flavor("large", **_LARGE)
    site.nova.add_flavor(
        "rack7", **test_fleet.SPECS, **{"trait:CUSTOM_RACK_7": "required"}
    )
    site.nova.add_flavor(
        "two", **test_fleet.SPECS, **{"resources_GPU2:VGPU": "1"}
    )
    page = site.place / "plan.html"
    cloud.run_all(
        f"""\
plan capacity
plan capacity --flavor nope
plan capacity --flavor plain
plan capacity --flavor two
plan capacity --count 2
plan capacity --flavor gpu.8q --count 0
plan capacity --flavor gpu.8q
plan capacity --flavor gpu.8q --count 2 --profile T4-8Q --count 9 --vcpus 1
plan capacity --flavor rack7
plan capacity --flavor large --add gpu=A100-80,hosts=2,vcpus=8
plan capacity --flavor large --count 2 --add gpu=A100-80 --html {page}
plan capacity --flavor gpu.8q --set host=a40-vf-mdev,mode=mixed
plan capacity --without a40-vf-mdev
plan capacity --without nope
plan capacity --without a40-vf-mdev --add gpu=A40,mode=mixed
"""
    )
    cloud.check("plan capacity")


def test_wrong_hardware(cloud: Cloud) -> None:  # noqa: F811
    cloud.run_all(
        """\
plan capacity --flavor gpu.8q --add gpu=
plan capacity --flavor gpu.8q --add hosts=2
plan capacity --flavor gpu.8q --add gpu=A100,racks=2
plan capacity --flavor gpu.8q --add gpu=A100-81
plan capacity --flavor gpu.8q --add gpu=A40,hosts=0
plan capacity --flavor gpu.8q --add gpu=A40,mode=mig
plan capacity --flavor gpu.8q --add gpu=A40,mode=sliced
plan capacity --flavor gpu.8q --add gpu=A30X
plan capacity --flavor gpu.8q --add gpu=A100,instances=4g.20gb/4g.20gb
plan capacity --flavor gpu.8q --add gpu=A100,mode=mixed,instances=4g.20gb
plan capacity --flavor gpu.8q --set host=a40-vf-mdev
plan capacity --flavor gpu.8q --set host=nope,mode=mixed
plan capacity --flavor gpu.8q --set host=a40-vf-mdev,mode=mig
plan capacity --flavor gpu.8q --set host=t4-mdev,card=0000:3b:00.0,vfs=4
"""
    )
    cloud.check("plan capacity, wrong hardware")


def test_plans_of_captured_hosts(
    cloud: Cloud,  # noqa: F811
) -> None:
    place = cloud.site.place
    root = look.make("l40s-vendor-vfio", place / "captured")
    archive = place / "captured.tar.gz"
    reader = host_reader.HostReader(str(root))
    scan.read(reader, plugin.load(), policy.DeviceRules())
    meta = capture.describe_host(str(root)) | {"hostname": "node9"}
    capture.save(reader, str(archive), meta)
    cloud.run_all(
        f"""\
plan capacity --from {archive} --profile L40S-8Q
plan capacity --from {archive} --from {archive} --profile L40S-8Q
  --extra-spec accelerator:packing=spread --count 3
plan capacity --from {archive} --profile L40S-9Q
plan capacity --from {archive} --profile L40S-8Q --extra-spec packing
plan capacity --from {archive} --flavor gpu.8q
plan capacity --from {place} --profile L40S-8Q
""",
        "--timeout",
        "30",
    )
    cloud.check("plan capacity, captured hosts")
