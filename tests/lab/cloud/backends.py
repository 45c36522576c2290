# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ and, for ``--hardware host``, libvirt: private instances.

Debian's packages provide the programs; the lab runs them with its own
configuration and directories, beside whatever the machine itself runs.
"""

import shutil
from pathlib import Path

from tests.lab.cloud.layout import Layout
from tests.lab.cloud.processes import Processes, run, tcp_answers

_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
#: One scheduler, no busy waiting, distribution on the loopback only.
_ERLANG = (
    "-kernel inet_dist_use_interface {127,0,0,1} "
    "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
)
_LIBVIRT_PATHS = {
    "etc": "/etc/libvirt",
    "lib": "/var/lib/libvirt",
    "log": "/var/log/libvirt",
    "run": "/run/libvirt",
}


def start_rabbitmq(layout: Layout, processes: Processes) -> None:
    """Start epmd and RabbitMQ and wait until it takes connections."""
    home = layout.state / "rabbitmq"
    home.mkdir(exist_ok=True)
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.default = 127.0.0.1:{layout.port('rabbitmq')}\n"
        "log.console = true\n"
        "log.file = false\n"
        "vm_memory_high_watermark.absolute = 256MB\n"
        "disk_free_limit.absolute = 10MB\n"
    )
    (home / "enabled_plugins").write_text("[].\n")
    (home / "env.conf").write_text("")
    epmd = str(layout.port("epmd"))
    env = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": "nova-accel-lab@localhost",
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_DIST_PORT": str(layout.port("rabbitmq-dist")),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": epmd,
    }
    mapper = processes.spawn(
        "epmd", ["epmd", "-address", "127.0.0.1", "-port", epmd]
    )
    processes.wait("epmd", tcp_answers(layout.port("epmd")), mapper)
    broker = processes.spawn("rabbitmq", [_RABBITMQ], env)
    processes.wait("rabbitmq", tcp_answers(layout.port("rabbitmq")), broker)


def libvirt_uri(layout: Layout) -> str:
    """Return the URI of the lab's own libvirtd on this machine."""
    return f"qemu:///system?socket={layout.run}/libvirt/libvirt-sock"


def start_libvirt(layout: Layout, processes: Processes) -> None:
    """Start a libvirtd of our own in a private mount namespace.

    libvirt's paths are compiled in, so private directories are bound over
    them; the machine's own libvirtd is not touched.
    """
    base = layout.state / "libvirt"
    binds = {base / name: path for name, path in _LIBVIRT_PATHS.items()}
    binds[base / "run"] = _LIBVIRT_PATHS["run"]
    for source in binds:
        source.mkdir(parents=True, exist_ok=True)
    (layout.run / "libvirt").symlink_to(base / "run")
    # Probing the emulators takes seconds: what libvirt learned is kept.
    learned = layout.cache / "libvirt"
    learned.mkdir(parents=True, exist_ok=True)
    binds[learned] = "/var/cache/libvirt"
    (base / "etc/qemu.conf").write_text(
        'stdio_handler = "file"\nuser = "root"\ngroup = "root"\n'
        'security_driver = "none"\nnamespaces = []\n'
        "cgroup_controllers = []\nremember_owner = 0\n"
    )
    conf = base / "etc/libvirtd.conf"
    conf.write_text('auth_unix_rw = "none"\nauth_unix_ro = "none"\n')
    script = ["set -e"]
    for source, target in binds.items():
        script += [f"mkdir -p {target}", f'mount --bind "{source}" {target}']
    script.append(f'exec libvirtd -f "{conf}" -p /run/libvirt/lab.pid')
    daemon = processes.spawn(
        "libvirtd",
        [
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", "\n".join(script)),
        ],
    )

    def answers() -> bool:
        virsh = ["virsh", "-c", libvirt_uri(layout), "version"]
        return run(virsh).returncode == 0

    processes.wait("libvirtd", answers, daemon)


def drop_domains(layout: Layout) -> None:
    """Destroy and undefine every domain of the lab's own libvirtd."""
    if not (layout.run / "libvirt" / "libvirt-sock").exists():
        return
    virsh = ["virsh", "-c", libvirt_uri(layout)]
    listed = run([*virsh, "list", "--all", "--name"]).stdout
    for name in listed.split():
        run([*virsh, "destroy", name])
        run([*virsh, "undefine", name])


def remove_state(layout: Layout) -> None:
    """Remove the state of a cloud that is down; logs and caches stay."""
    if layout.state.exists():
        shutil.rmtree(layout.state)


def kvm_is_usable() -> bool:
    """Return whether this machine's processor offers virtualization.

    ``/dev/kvm`` alone proves nothing: a paravirtualized one without VMX or
    SVM exists, and unmodified guests do not get far on it.
    """
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return bool(flags & {"vmx", "svm"}) and Path("/dev/kvm").exists()
