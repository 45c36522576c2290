# SPDX-License-Identifier: Apache-2.0
"""Real ironic-python-agent in the lab's VM, as in the ramdisk of a node.

The agent runs from the lab's virtual environment, which the machine sees. Its
API is forwarded to this machine. A web server inside takes the data of the
inspection, in the place of Ironic, and has the images of FPGAs.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.e2e.support import vm_site
from tests.lab import vm
from tests.support import agent_api

# An emulated processor on a busy machine takes minutes to start the agent.
_SECONDS = 900.0
_WEB = "http://127.0.0.1:8080"
_CONF = """
[DEFAULT]
listen_host = 10.0.2.15
listen_port = 9999
advertise_host = 127.0.0.1
enable_auto_tls = false
inspection_callback_url = {web}/cgi-bin/inspection
inspection_collectors = default,accel
inspection_dhcp_wait_timeout = 0
disk_wait_attempts = 1
disk_wait_delay = 0
agent_token = {token}
log_file = {place}/agent.log
[nova_accel]
image_hosts = 127.0.0.1:8080
"""
# Ironic answers an inspection with the node.
_CALLBACK = """#!/bin/sh
cat > {place}/inspection.json
printf 'Content-Type: application/json\\n\\n{{"uuid": "node"}}'
"""
_AGENT = """#!/bin/sh
PATH={programs}:$PATH
{agent} --config-file agent.conf > output 2>&1
echo $? > ended
"""
_FILES = {
    "agent": _AGENT,
    "agent.conf": _CONF,
    "cgi-bin/inspection": _CALLBACK,
}
_RUN = """
cd {place}
chmod 755 agent cgi-bin/inspection
setsid busybox httpd -f -p 127.0.0.1:8080 > httpd.log 2>&1 < /dev/null &
echo $! > pids
setsid ./agent > /dev/null 2>&1 < /dev/null &
echo $! >> pids
"""
# Either may have ended.
_END = "for pid in $(cat {place}/pids); do kill -9 -$pid; done; true"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RamdiskAgent(agent_api.AgentClient):
    """An agent inside the machine, and its files, which both sides see."""

    place: pathlib.Path
    timeout_s: float = _SECONDS
    pause_s: float = 1.0

    def is_running(self) -> bool:
        return not (self.place / "ended").exists()

    def read_log(self) -> str:
        logs = (self.place / name for name in ("output", "agent.log"))
        return "\n".join(log.read_text() for log in logs if log.exists())

    def read_inspection(self) -> dict[str, Any]:
        """Return the data that the agent sent before its API was up."""
        text = (self.place / "inspection.json").read_text()
        data: dict[str, Any] = json.loads(text)
        return data

    def add_image(self, name: str, content: bytes) -> str:
        """Return the URL of an image inside the machine."""
        (self.place / name).write_bytes(content)
        return f"{_WEB}/{name}"


@contextlib.contextmanager
def start(lab: pathlib.Path) -> Iterator[RamdiskAgent]:
    """Run the agent until the end of the context."""
    share = vm.shared_dir(lab)
    with tempfile.TemporaryDirectory(prefix="agent-", dir=share) as name:
        place = pathlib.Path(name)
        program = pathlib.Path(sys.executable).parent / "ironic-python-agent"
        values = {
            "place": place,
            "programs": agent_api.add_programs(place),
            "web": _WEB,
            "token": agent_api.TOKEN,
            "agent": program,
        }
        (place / "cgi-bin").mkdir()
        for path, text in _FILES.items():
            (place / path).write_text(text.format(**values))
        vm_site.inside(lab, _RUN.format(**values))
        agent = RamdiskAgent(url=vm.agent_url(), place=place)
        try:
            agent.await_api()
            yield agent
        finally:
            vm_site.inside(lab, _END.format(**values))
