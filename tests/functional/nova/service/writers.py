# SPDX-License-Identifier: Apache-2.0
"""Second writer of a host, and a record of both writers' requests."""

import collections
import logging
import threading
import time
from typing import Any

from nova_accel import model
from nova_accel.config import conf
from nova_accel.model import providers
from placement_sync.cli import outside_host
from placement_sync.client import cloud_client, resource_providers
from placement_sync.daemon import loop
from placement_sync.sync import sync_pass

OUTSIDE = "outside"
_CONFLICT = "409"


class Outside:
    """A placement-sync on the host of a nova-compute."""

    def __init__(
        self, settings: conf.Settings, root: providers.ProviderRoot, url: str
    ) -> None:
        """Read the same host, and write into the same Placement."""
        self._root = root
        self._node = outside_host.open_node(
            settings, settings.root, settings.state_dir
        )
        self._sync = sync_pass.Synchronizer(
            resource_providers.PlacementClient(cloud_client.from_endpoint(url))
        )
        self.loop: loop.Loop | None = None

    def run(self) -> sync_pass.PassResult:
        """Run one pass, as the command does."""
        view = self._node.read_view(self._root)
        return self._sync.run(
            view.tree, view.host, is_shared=view.is_shared, reread=self._reread
        )

    def start(self, interval_s: float) -> None:
        """Run passes by the clock."""
        self.loop = loop.Loop(self.run, interval_s, name=OUTSIDE)
        self.loop.start()

    def stop(self) -> None:
        """Stop the passes."""
        if self.loop is not None:
            assert self.loop.stop(120), "a pass does not end"

    def _reread(self) -> tuple[providers.ProviderTree, model.HostState]:
        view = self._node.read_view(self._root)
        return view.tree, view.host


class Ledger(logging.Handler):
    """Counts writes, changes by writer, and Placement's conflicts."""

    def __init__(self) -> None:
        """Count nothing yet."""
        super().__init__(logging.DEBUG)
        self.counts: collections.Counter[str] = collections.Counter()
        self.lines: collections.deque[str] = collections.deque(maxlen=400)
        self._loggers = [
            logging.getLogger(name)
            for name in (
                "placement_sync.sync.sync_pass",
                "virt_hooks.report.provider_writer",
                "virt_hooks.report.nova_provider_tree",
                "placement.requestlog",
            )
        ]

    def __enter__(self) -> "Ledger":
        for logger in self._loggers:
            logger.addHandler(self)
        return self

    def __exit__(self, *_: Any) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)

    def note(self, text: str) -> None:
        """Write a line down, with its time."""
        if text:
            self.lines.append(f"{time.monotonic():.2f} {text[:200]}")

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line of the log."""
        text = record.getMessage()
        if record.name == "placement.requestlog":
            self._request(text)
        elif record.levelno >= logging.INFO:
            name = threading.current_thread().name
            writer = "nova-compute"
            if record.name == "placement_sync.sync.sync_pass":
                writer = OUTSIDE if name == OUTSIDE else "its pass"
            self.counts[f"changes by {writer}"] += 1
            self.note(f"{writer}: {text}")

    def _request(self, text: str) -> None:
        method = text.partition('"')[2].partition(" ")[0]
        path = text.partition('"')[2].split(" ")[1]
        status = text.partition("status: ")[2][:3]
        if "/resource_providers" not in path or method == "GET":
            return
        self.counts["writes"] += 1
        if status == _CONFLICT:
            self.counts["409"] += 1
            self.note(f"409: {method} {path}")
