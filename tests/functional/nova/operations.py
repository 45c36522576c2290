# SPDX-License-Identifier: Apache-2.0
"""What users and operators do to a server, each as one step."""

from typing import Any

from tests.functional.nova import agreement, base, technologies


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
        """Return why the last thing that failed did so."""
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

    def rescue(self, server: Any) -> None:
        self._rescue_server(server)

    def unrescue(self, server: Any) -> None:
        self._unrescue_server(server)

    def rebuild(self, server: Any) -> None:
        self._rebuild_server(server, base.IMAGE)

    def shelve(self, server: Any) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(server, "SHELVED")

    def unshelve(self, server: Any) -> None:
        self._unshelve_server(server)
