# SPDX-License-Identifier: Apache-2.0
"""The running lab, for end-to-end tests: requests and observations."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import openstack

from tests.lab.cloud import actual_state, machine
from tests.lab.cloud.cloud import IMAGE, Cloud
from tests.lab.cloud.processes import run

#: A server's limit under software emulation on busy cores.
SERVER_SECONDS = 480.0
#: Of Nova's API, before evacuated servers were left stopped.
_ACTIONS = "2.94"
#: How often in a row a server is seen in a wrong state with nothing to do.
_STILL = 20
_MICROVERSION = {"OpenStack-API-Version": "placement 1.39"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A resource provider as placement has it."""

    uuid: str
    name: str
    inventories: Mapping[str, Mapping[str, Any]]
    traits: frozenset[str]


class Site:
    """The lab's cloud, its compute host, and its servers."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.layout = cloud.layout
        self._env = machine.client_environment(self.layout)
        os.environ.update(machine.client_variables(self.layout))
        self.api = _connect()
        self.lab_image: str = self.api.image.find_image(IMAGE).id

    def clean(self) -> None:
        """Delete every server, flavor and image but the lab's own."""
        servers = list(self.api.compute.servers())
        for server in servers:
            self.delete(server)
        for server in servers:
            self.wait_gone(server)
        for flavor in self.api.compute.flavors():
            if flavor.name.startswith("e2e-"):
                self.api.compute.delete_flavor(flavor)
        for image in self.api.image.images():
            if image.name.startswith("e2e-"):
                self.api.image.delete_image(image)

    def providers(self, host: str = "") -> dict[str, Provider]:
        """Return the providers below the compute node, by their suffix.

        The suffix is the device: ``mtty``, ``0000_02_00_0``.

        :param host: of several nodes, the one meant.
        """
        return {
            name.split("_accel_", 1)[1]: self._provider(uuid, name)
            for uuid, name in self.provider_names().items()
            if f"{host}_accel_" in name
        }

    def provider_names(self) -> dict[str, str]:
        """Return the names of all providers by their uuids."""
        listed = self._placement("/resource_providers")["resource_providers"]
        return {item["uuid"]: item["name"] for item in listed}

    def generation(self, provider: str) -> int:
        """Return a provider's generation."""
        path = f"/resource_providers/{provider}"
        return int(self._placement(path)["generation"])

    def _provider(self, uuid: str, name: str) -> Provider:
        path = f"/resource_providers/{uuid}"
        return Provider(
            uuid=uuid,
            name=name,
            inventories=self._placement(f"{path}/inventories")["inventories"],
            traits=frozenset(self._placement(f"{path}/traits")["traits"]),
        )

    def flavor(self, name: str, **extra_specs: str) -> Any:
        """Create a flavor; ``__`` in a key means a colon."""
        return self.flavor_of(64, f"e2e-{name}", extra_specs)

    def flavor_of(
        self, ram: int, name: str, extra_specs: Mapping[str, str]
    ) -> Any:
        """Create a flavor with so many MiB of memory."""
        flavor = self.api.compute.create_flavor(
            name=name, ram=ram, vcpus=1, disk=1
        )
        specs = {k.replace("__", ":"): v for k, v in extra_specs.items()}
        self.api.compute.create_flavor_extra_specs(flavor, specs)
        return flavor

    def image(self, name: str, content: bytes, **properties: str) -> str:
        """Create an image with properties; return its id."""
        record = {"name": f"e2e-{name}", **properties}
        record |= {"disk_format": "raw", "container_format": "bare"}
        answer = self.api.image.post("/images", json=record)
        assert answer.status_code == 201, answer.text
        image = str(answer.json()["id"])
        stored = self.api.image.put(
            f"/images/{image}/file",
            data=content,
            headers={"Content-Type": "application/octet-stream"},
        )
        assert stored.status_code == 204, stored.text
        return image

    def request(self, name: str, flavor: Any, **arguments: Any) -> Any:
        """Ask for a server and return it, whatever becomes of it.

        :param arguments: further arguments of Nova's API.
        """
        parameters = {
            "image_id": self.lab_image,
            "networks": "none",
            **arguments,
        }
        return self.api.compute.create_server(
            name=name, flavor_id=flavor.id, **parameters
        )

    def act(self, server: Any, action: str, **arguments: Any) -> None:
        """Ask Nova for a server's action, by its name in Nova's API."""
        answer = self.api.compute.post(
            f"/servers/{server.id}/action",
            json={action: arguments or None},
            microversion=_ACTIONS,
        )
        assert answer.status_code < 300, answer.text

    def reach(self, server: Any, *states: str) -> Any:
        """Wait until a server is in one of these states, and return it.

        A server that stays in another state has failed: AssertionError.
        """
        seen: list[str] = []

        def read_state() -> Any:
            now = self.api.compute.get_server(server.id)
            if now.task_state is not None:
                seen.clear()
                return None
            seen.append(now.status)
            # Nova writes a task's end and its state one after the other.
            is_there = now.status in states
            return now if is_there or len(seen) > _STILL else None

        now = wait_for(read_state, f"{server.name} to be {states}")
        assert now.status in states, f"{states}: {fault(now)}"
        return now

    def await_build(self, server: Any) -> Any:
        """Wait until a server is ACTIVE or in ERROR; return it."""

        def read_state() -> Any:
            now = self.api.compute.get_server(server.id)
            # Nova writes the reason a moment after the state.
            has_failed = now.status == "ERROR" and now.fault is not None
            return now if has_failed or now.status == "ACTIVE" else None

        return wait_for(read_state, f"{server.name} to be built")

    def boot(self, name: str, flavor: Any, **arguments: Any) -> Any:
        """Create a server and return it when it is ACTIVE."""
        server = self.await_build(self.request(name, flavor, **arguments))
        assert server.status == "ACTIVE", fault(server)
        return server

    def hard_reboot(self, server: Any) -> Any:
        """Reboot a server hard; return it when it is ACTIVE again."""
        self.api.compute.reboot_server(server, "HARD")

        def done() -> Any:
            now = self.api.compute.get_server(server.id)
            return now if now.task_state is None else None

        return wait_for(done, f"{server.name} to reboot")

    def delete(self, server: Any) -> None:
        """Ask nova to delete a server."""
        self.api.compute.delete_server(server, ignore_missing=True)

    def wait_gone(self, server: Any) -> None:
        """Wait until nova has deleted a server."""
        wait_for(
            lambda: self.api.compute.find_server(server.id) is None,
            f"{server.name} to go",
        )

    def allocations(self, server: Any) -> dict[str, dict[str, int]]:
        """Return the allocations of a server, by provider."""
        allocations = self._placement(f"/allocations/{server.id}")[
            "allocations"
        ]
        return {uuid: item["resources"] for uuid, item in allocations.items()}

    def consumers(self, provider: str) -> dict[str, dict[str, int]]:
        """Return the allocations of a provider, by consumer."""
        path = f"/resource_providers/{provider}/allocations"
        allocations = self._placement(path)["allocations"]
        return {uuid: item["resources"] for uuid, item in allocations.items()}

    def domain(self, server: Any) -> str:
        """Return the XML of the server's domain, as libvirt has it."""
        done = run(["virsh", "dumpxml", server.id], self._env)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def hostdevs(self, server: Any, kind: str) -> list[str]:
        """Return the hostdevs of a type that the server's domain has."""
        return actual_state.hostdev_sources(self.domain(server), kind)

    def mdevs(self) -> set[str]:
        """Return the uuids of the mdevs in the compute host's kernel."""
        return actual_state.mdevs(self.layout)

    def claims(self) -> dict[str, list[str]]:
        """Return the slots that nova claimed, by server."""
        return actual_state.claims(self.layout)

    def on_host(self, script: str, *arguments: str) -> str:
        """Run a shell script on the compute host's kernel."""
        argv = ["sh", "-c", script, "sh", *arguments]
        return machine.on_hardware(self.layout, argv)

    def restart_compute(self, name: str, *options: str) -> None:
        """Restart nova-compute with more options of [nova_accel]."""
        overlay = self.layout.state / f"{name}.conf"
        lines = ["[nova_accel]", *options, ""]
        overlay.write_text("\n".join(lines))
        self.cloud.restart_compute(overlay)

    def accel(self, *arguments: str) -> str:
        """Run nova-accel as the operator of the compute host."""
        argv = [
            *self.cloud.prefix,
            self.layout.program("nova-accel"),
            *arguments,
        ]
        done = run(argv, self._env)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def command(self, program: str, *arguments: str) -> Any:
        """Run a program where there is no compute host; return its end."""
        return run([self.layout.program(program), *arguments], self._env)

    def begin(self, program: str, *arguments: str) -> Any:
        """Start such a program, and return its process at once."""
        return subprocess.Popen(  # noqa: S603 - argv of a test
            [self.layout.program(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._env,
        )

    def commanded(self, program: str, *arguments: str) -> str:
        """Run a program that must succeed; return what it says."""
        done = self.command(program, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def sync(self, *arguments: str) -> Any:
        """Run a command on the compute host; return what it did.

        It reads nova-compute's own configuration, and the machine's files.
        """
        conf = self.layout.etc / "nova-compute.conf"
        is_pass = arguments[0] == "run"
        argv = [
            *self.cloud.prefix,
            self.layout.program("placement-sync" if is_pass else "nova-accel"),
            *arguments,
            f"--config-file={conf}",
        ]
        return run(argv, self._env)

    def synced(self, *arguments: str) -> str:
        """Run a command, which must succeed; return what it says."""
        done = self.sync(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def place(self, method: str, path: str, body: object = None) -> None:
        """Change something in placement, unknown to all services."""
        answer = self.api.placement.request(
            path, method, json=body, headers=_MICROVERSION
        )
        assert answer.status_code < 300, answer.text

    def log_offset(self, name: str) -> int:
        """Return where a service's log ends now."""
        return (self.layout.log / f"{name}.log").stat().st_size

    def logged(self, name: str, pattern: str, offset: int) -> list[str]:
        """Return the lines after an offset that match a pattern."""
        log = self.layout.log / f"{name}.log"
        return actual_state.log_lines(log, pattern, offset)

    def _placement(self, path: str) -> Any:
        answer = self.api.placement.get(path, headers=_MICROVERSION)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _connect() -> Any:
    """Return a connection; as Any, for its proxies' types are unions."""
    return openstack.connect()


def fault(server: Any) -> str:
    """Return what nova says went wrong with a server."""
    return f"{server.name} is {server.status}: {server.fault}"


def wait_for(probe: Callable[[], Any], what: str) -> Any:
    """Return the probe's first true answer; AssertionError in time."""
    deadline = time.monotonic() + SERVER_SECONDS
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.3)
    return answer
