# SPDX-License-Identifier: Apache-2.0
"""Real ironic-python-agent on a simulated machine, without a boot.

The agent is a process in a mount namespace, with the /sys and /dev of the
simulated host; its interface is this machine's eth0.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

from tests.support import agent_api

INTERFACE = "eth0"
# linux/sockios.h; the address is in ifr_hwaddr, after name and family.
_SIOCGIFHWADDR, _ADDRESS = 0x8927, slice(18, 24)
_CONF = """
[DEFAULT]
listen_host = 127.0.0.1
listen_port = {port}
advertise_host = 127.0.0.1
advertise_port = {port}
enable_auto_tls = false
inspection_collectors = default,accel
inspection_dhcp_wait_timeout = 0
disk_wait_attempts = 1
disk_wait_delay = 0
lookup_timeout = 1
agent_token = {token}
log_file = {log}
debug = true
{mode}
[nova_accel]
image_hosts = {images}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent(agent_api.AgentClient):
    """A running agent."""

    log: pathlib.Path
    process: "subprocess.Popen[bytes]"

    def is_running(self) -> bool:
        return self.process.poll() is None

    def read_log(self) -> str:
        return self.log.read_text()


def missing() -> str:
    """Return why the agent can't run here, "" if it can."""
    if os.geteuid() != 0:
        return "the namespace of the agent needs root"
    if not pathlib.Path("/sys/class/net", INTERFACE).exists():
        return f"this machine has no {INTERFACE}"
    return ""


def read_mac() -> str:
    """Return the address of the agent's interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", INTERFACE.encode())
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFHWADDR, request)
    return answer[_ADDRESS].hex(":")


@contextlib.contextmanager
def start(
    root: pathlib.Path,
    state: pathlib.Path,
    api_url: str = "",
    images: str = "",
) -> Iterator[Agent]:
    """Run the agent on the simulated host below a root.

    :param state: an empty directory.
    :param api_url: URL of Ironic, which the agent is to inspect for; empty
        for an agent that only serves its own API.
    :param images: host and port to download images from.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = f"{agent_api.add_programs(state)}:{os.environ['PATH']}"
    log, conf = state / "agent.log", state / "agent.conf"
    mode = f"api_url = {api_url}" if api_url else "standalone = true"
    conf.write_text(
        _CONF.format(
            port=port,
            log=log,
            token=agent_api.TOKEN,
            mode=mode,
            images=images,
        )
    )
    programs = pathlib.Path(sys.executable).parent
    with (
        (state / "output").open("w") as words,
        subprocess.Popen(  # noqa: S603
            [
                *("unshare", "--mount", sys.executable),
                *("-m", "tests.functional.ironic.agent_namespace"),
                *(str(root), str(state)),
                *(programs / "ironic-python-agent", "--config-file", conf),
            ],
            stdout=words,
            stderr=words,
            env=os.environ | {"PATH": path},
            start_new_session=True,
        ) as running,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            yield Agent(url=url, log=log, process=running)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
