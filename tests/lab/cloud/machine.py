# SPDX-License-Identifier: Apache-2.0
"""The lab as one thing: the hardware, the cloud on it, and their end."""

from collections.abc import Iterator
from pathlib import Path

from tests.lab.cloud import cloud as clouds
from tests.lab.cloud import settings
from tests.lab.cloud.backends import remove_state
from tests.lab.cloud.layout import Layout
from tests.lab.cloud.options import Options, read_options
from tests.lab.cloud.processes import LabError, run, say
from tests.lab.vm import errors, serve
from tests.lab.vm.layout import libvirt_uri
from tests.lab.vm.machine import wire_address
from tests.lab.vm.prepare import prepare

#: The entry script writes what source the installed wheel was made of.
_WHEEL_STAMP = "wheel.stamp"
#: The VM, and the second one that tests may have left.
_HOSTS = 2


def up(layout: Layout, options: Options) -> None:
    """Start the lab as chosen, unless it is up.

    A cloud that runs an older wheel of the library gets its nova-api,
    nova-scheduler and nova-compute restarted.  LabError names what failed.
    """
    cloud = clouds.Cloud(layout)
    if cloud.is_up() and read_options(layout) == options:
        _refresh(cloud)
        return
    if layout.state.exists():
        say("ending what is left of an earlier lab")
        down(layout)
    say(f"cloud: starting (logs in {layout.log})")

    def hardware() -> settings.ComputeHost:
        if options.hardware == "host":
            return clouds.host_hardware(layout, cloud.processes)
        return _start_vm(layout, options.root)

    try:
        cloud.up(options, hardware)
    except LabError:
        say("cloud: failed; ending what was started")
        down(layout)
        raise
    _stamp(layout).write_text(_installed(layout))
    say("cloud: up")


def down(layout: Layout) -> None:
    """End everything that the lab started; LabError if something stays."""
    clouds.Cloud(layout).end()
    try:
        for number in range(_HOSTS):
            serve.stop(layout.lab, number)
    except errors.LabVmError as error:
        raise LabError(f"the VM could not be ended: {error}") from error
    remove_state(layout)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    mounted = [m.split()[1] for m in mounts if f" {layout.lab}/" in m]
    if mounted:
        raise LabError(f"still mounted: {', '.join(mounted)}; use umount")
    say("lab: down")


def status(layout: Layout) -> Iterator[str]:
    """Yield the lines of the VM's and the cloud's status."""
    yield f"VM: {'up' if serve.is_up(layout.lab) else 'down'}"
    yield from clouds.status(clouds.Cloud(layout))


def client_variables(layout: Layout) -> dict[str, str]:
    """Return the variables that point clients and virsh at the lab."""
    variables = layout.client_variables()
    cloud = clouds.Cloud(layout)
    if cloud.is_up():
        variables["LIBVIRT_DEFAULT_URI"] = cloud.libvirt_uri
    return variables


def client_environment(layout: Layout) -> dict[str, str]:
    """Return the whole environment for a client of the lab."""
    return layout.client_environment() | client_variables(layout)


def on_hardware(layout: Layout, argv: list[str], timeout_s: float = 60) -> str:
    """Run a command on the compute host's kernel and return its output.

    LabError when it fails.
    """
    options = read_options(layout)
    if options is not None and options.hardware == "host":
        done = run(argv)
    else:
        try:
            done = serve.guest_exec(layout.lab, argv, timeout_s)
        except (errors.LabVmError, OSError) as error:
            raise LabError(
                f"the VM did not run {' '.join(argv)}: {error}"
            ) from error
    if done.returncode:
        raise LabError(
            f"{' '.join(argv)} failed with {done.returncode}: {done.stderr}"
        )
    return str(done.stdout)


def _start_vm(layout: Layout, root: str) -> settings.ComputeHost:
    """Boot the VM with the instances directory shared into it."""
    try:
        say("vm: kernel, modules and fake cards (minutes at the first time)")
        prepare(layout.lab, root)
        say("vm: booting")
        serve.start(layout.lab, share=layout.instances, timeout_s=300)
        say("vm: up, its libvirt answers")
        return settings.ComputeHost(
            libvirt_uri=libvirt_uri(),
            virt_type=serve.virt_type(layout.lab),
            prefix=tuple(serve.exec_prefix(layout.lab)),
            migration_address=wire_address(),
        )
    except errors.LabVmError as error:
        raise LabError(str(error)) from error


def _refresh(cloud: clouds.Cloud) -> None:
    """Restart what imported an older wheel."""
    layout = cloud.layout
    if _stamp(layout).read_text() == _installed(layout):
        say("cloud: up already")
        return
    say("cloud: up, with an older wheel: restarting what imports it")
    cloud.restart_api()
    cloud.restart_scheduler()
    cloud.restart_compute()
    _stamp(layout).write_text(_installed(layout))


def _stamp(layout: Layout) -> Path:
    return layout.state / _WHEEL_STAMP


def _installed(layout: Layout) -> str:
    path = layout.lab / _WHEEL_STAMP
    return path.read_text() if path.exists() else ""
