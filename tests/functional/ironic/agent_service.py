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
import time
from collections.abc import Iterator, Mapping
from typing import Any

import requests

_SECONDS = 60.0
_PAUSE_S = 0.05
INTERFACE = "eth0"
# Ironic gives each agent one of its own.
_TOKEN = "token-of-tests"  # noqa: S105
# linux/sockios.h; the address is in ifr_hwaddr, after name and family.
_SIOCGIFHWADDR, _ADDRESS = 0x8927, slice(18, 24)
# Programs that the agent asks for the machine's name, its boot and its BMC.
_STANDINS = {
    "lshw": '{"id": "machine", "class": "system"}',
    "dmidecode": "",
    "ipmitool": "",
}
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
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
    """A running agent."""

    url: str
    log: pathlib.Path
    process: "subprocess.Popen[bytes]"

    def post(self, command: str, **params: Any) -> requests.Response:
        return requests.post(
            f"{self.url}/v1/commands",
            params={"wait": "true", "agent_token": _TOKEN},
            json={"name": command, "params": params},
            timeout=_SECONDS,
        )

    def call(self, command: str, **params: Any) -> dict[str, Any]:
        """Run a command; return its record, failed or not."""
        answer = self.post(command, **params)
        assert answer.ok, answer.text
        record: dict[str, Any] = answer.json()
        return record

    def run_step(
        self, phase: str, step: str, node: Any, **args: Any
    ) -> dict[str, Any]:
        """Run a step of cleaning, deployment or service, as Ironic does."""
        description = {"step": step, "interface": "deploy", "args": args}
        return self.call(
            f"{phase}.execute_{phase}_step",
            step=description,
            node=node,
            ports=[],
        )


def describe_node(*accelerators: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node as Ironic describes it to its agent."""
    return {
        "uuid": "node",
        "properties": {"accelerators": list(accelerators)},
        "instance_info": {},
        "driver_internal_info": {},
    }


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
    root: pathlib.Path, state: pathlib.Path, api_url: str = ""
) -> Iterator[Agent]:
    """Run the agent on the simulated host below a root.

    :param state: an empty directory.
    :param api_url: URL of Ironic, which the agent is to inspect for; empty
        for an agent that only serves its own API.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.environ["PATH"]
    log, conf = state / "agent.log", state / "agent.conf"
    mode = f"api_url = {api_url}" if api_url else "standalone = true"
    conf.write_text(
        _CONF.format(port=port, log=log, token=_TOKEN) + mode + "\n"
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
            env=os.environ | {"PATH": f"{_add_programs(state)}:{path}"},
            start_new_session=True,
        ) as running,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            yield Agent(url=url, log=log, process=running)
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def _add_programs(state: pathlib.Path) -> pathlib.Path:
    """Add programs in place of those that describe other hardware."""
    place = state / "bin"
    place.mkdir()
    for name, output in _STANDINS.items():
        program = place / name
        program.write_text(f"#!/bin/sh\necho '{output}'\n")
        program.chmod(0o755)
    return place


def await_api(agent: Agent) -> None:
    """Wait until an agent answers, and knows the commands of cleaning."""
    until = time.monotonic() + _SECONDS
    while True:
        with contextlib.suppress(requests.ConnectionError):
            node = describe_node()
            if agent.post("clean.get_clean_steps", node=node, ports=[]).ok:
                return
        is_late = time.monotonic() > until
        is_gone = agent.process.poll() is not None
        assert not is_late and not is_gone, agent.log.read_text()
        time.sleep(_PAUSE_S)
