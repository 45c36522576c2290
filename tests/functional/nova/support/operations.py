# SPDX-License-Identifier: Apache-2.0
"""Operations of users and operators on a server."""

from pathlib import Path
from typing import Any

from tests.functional.nova.support import agreement, harness, technologies


class OperationsTestBase(agreement.AgreementTestBase):
    """Hosts with the cards of one technology, and a server's steps."""

    technology: technologies.Technology

    def start_hosts(self, *hosts: str) -> None:
        for name in hosts:
            self.start_host(
                *self.technology.cards,
                name=name,
                **dict(self.technology.settings),
            )

    def reason(self, server: Any) -> str:
        """Return the details of the server's failed events."""
        actions = self.api.get_instance_actions(server["id"])
        events = [
            event
            for action in actions
            for event in self.api.api_get(
                f"/servers/{server['id']}/os-instance-actions/"
                f"{action['request_id']}"
            ).body["instanceAction"]["events"]
        ]
        failed = [e for e in events if e["result"] == "Error"]
        failed.sort(key=lambda e: str(e["finish_time"]))
        return "".join(f"{e.get('details')} {e['traceback']}" for e in failed)

    def reboot_soft(self, server: Any) -> None:
        self._reboot_server(server, hard=False)

    def reboot_hard(self, server: Any) -> None:
        self._reboot_server(server, hard=True)

    def stop(self, server: Any) -> None:
        self._stop_server(server)

    def start(self, server: Any) -> None:
        self._start_server(server)

    def restart_service(self, _: Any) -> None:
        self.restart()

    def snapshot(self, server: Any) -> None:
        self._snapshot_server(server, "picture")
        self._wait_for_server_parameter(
            server, {"OS-EXT-STS:task_state": None}
        )

    def act(self, server: Any, word: str, state: str) -> None:
        self.api.post_server_action(server["id"], {word: None})
        self._wait_for_state_change(server, state)

    def pause(self, server: Any) -> None:
        self.act(server, "pause", "PAUSED")

    def unpause(self, server: Any) -> None:
        self.act(server, "unpause", "ACTIVE")

    def suspend(self, server: Any) -> None:
        self.act(server, "suspend", "SUSPENDED")

    def resume(self, server: Any) -> None:
        self.act(server, "resume", "ACTIVE")

    def make_directory(self, server: Any) -> None:
        # Nova's harness creates no disks, and not their directory either.
        directory = Path(harness.CONF.instances_path) / server["id"]
        directory.mkdir(exist_ok=True)

    def rescue(self, server: Any) -> None:
        self.make_directory(server)
        self._rescue_server(server)

    def unrescue(self, server: Any) -> None:
        self._unrescue_server(server)

    def rebuild(self, server: Any) -> None:
        self._rebuild_server(server, harness.IMAGE)

    def shelve(self, server: Any) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(server, "SHELVED")

    def unshelve(self, server: Any) -> None:
        self._unshelve_server(server)

    # -- moves -------------------------------------------------------------

    def flavor(self, specs: dict[str, str]) -> Any:
        """Return the id of a flavor with these extra specs."""
        return self._create_flavor(
            extra_spec=specs, memory_mb=256, vcpu=1, disk=1, ephemeral=0
        )

    def host_of(self, server: Any) -> str:
        return str(self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"])

    def migrate(self, server: Any) -> None:
        self._migrate_server(server)

    def resize(self, server: Any, specs: dict[str, str]) -> None:
        body = {"resize": {"flavorRef": self.flavor(specs)}}
        self.api.post_server_action(server["id"], body)
        self._wait_for_state_change(server, "VERIFY_RESIZE")

    def resize_to_other(self, server: Any) -> None:
        self.resize(server, self.technology.other(self))

    def reset_state(self, server: Any) -> None:
        """Set a server to ERROR, as an operator can."""
        self.api.post_server_action(
            server["id"], {"os-resetState": {"state": "error"}}
        )

    def confirm(self, server: Any) -> None:
        self.be_on(self.source_of(server))
        self._confirm_resize(server)

    def revert(self, server: Any) -> None:
        self.be_on(self.source_of(server))
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_state_change(server, "ACTIVE")

    def source_of(self, server: Any) -> str:
        """Return the source host of a server's last move."""
        path = f"/os-migrations?instance_uuid={server['id']}"
        migrations = self.api.api_get(path).body["migrations"]
        return str(
            max(migrations, key=lambda m: int(m["id"]))["source_compute"]
        )

    def offload(self, server: Any) -> None:
        self.flags(shelved_offload_time=0)
        self._shelve_server(server)
