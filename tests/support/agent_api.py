# SPDX-License-Identifier: Apache-2.0
"""Client of the API of an ironic-python-agent.

It sends commands as ironic-conductor does, and waits for their results.
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import requests

# Ironic gives each agent one of its own.
TOKEN = "token-of-tests"  # noqa: S105
#: Our steps and their priorities, by the phase in which they run.
OUR_STEPS = {
    "clean": {"accel_scrub": 60, "accel_verify": 50},
    "deploy": {"accel_program": 0, "accel_set_mode": 0},
    "service": {"accel_program": 0, "accel_set_mode": 0},
}
# Programs that the agent asks for the machine's name, its boot and its BMC.
_STANDINS = {
    "lshw": '{"id": "machine", "class": "system"}',
    "dmidecode": "",
    "ipmitool": "",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentClient:
    """Client of a running agent."""

    url: str
    #: longest time until a command has ended
    timeout_s: float = 60.0
    #: between two questions whether it answers
    pause_s: float = 0.05

    def is_running(self) -> bool:
        """Return False if it is known that the agent has ended."""
        return True

    def read_log(self) -> str:
        """Return the agent's log, for the report of a failure."""
        return ""

    def post(self, command: str, **params: Any) -> requests.Response:
        return requests.post(
            f"{self.url}/v1/commands",
            params={"wait": "true", "agent_token": TOKEN},
            json={"name": command, "params": params},
            timeout=self.timeout_s,
        )

    def call(self, command: str, **params: Any) -> dict[str, Any]:
        """Run a command; return its record, failed or not."""
        answer = self.post(command, **params)
        assert answer.ok, answer.text
        record: dict[str, Any] = answer.json()
        return record

    def list_steps(self, phase: str, node: Any) -> dict[str, int]:
        """Return the steps of a phase, of all managers, and priorities."""
        record = self.call(f"{phase}.get_{phase}_steps", node=node, ports=[])
        managers = record["command_result"][f"{phase}_steps"].values()
        return {
            step["step"]: step["priority"]
            for steps in managers
            for step in steps
        }

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

    def await_api(self) -> None:
        """Wait until the agent answers, and knows the commands of cleaning."""
        until = time.monotonic() + self.timeout_s
        while True:
            with contextlib.suppress(requests.ConnectionError):
                node = describe_node()
                if self.post("clean.get_clean_steps", node=node, ports=[]).ok:
                    return
            is_late = time.monotonic() > until
            assert self.is_running() and not is_late, self.read_log()
            time.sleep(self.pause_s)


def describe_node(*accelerators: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node as Ironic describes it to its agent."""
    return {
        "uuid": "node",
        "properties": {"accelerators": list(accelerators)},
        "instance_info": {},
        "driver_internal_info": {},
    }


def result_of(record: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """Return the result of a step that succeeded."""
    assert record["command_status"] == "SUCCEEDED", record
    result: dict[str, Any] = record["command_result"][f"{phase}_result"]
    return result


def error_of(record: Mapping[str, Any]) -> str:
    """Return the error of a step that failed."""
    assert record["command_status"] == "FAILED", record
    return str(record["command_error"])


def add_programs(state: pathlib.Path) -> pathlib.Path:
    """Add programs in place of those that describe other hardware."""
    place = state / "bin"
    place.mkdir()
    for name, output in _STANDINS.items():
        program = place / name
        program.write_text(f"#!/bin/sh\necho '{output}'\n")
        program.chmod(0o755)
    return place
