# SPDX-License-Identifier: Apache-2.0
"""Passes of a nova-compute without Placement and without servers."""

from pathlib import Path

from oslo_config import cfg

from virt_hooks.report import (
    background_pass,
    provider_writer,
    reconcile,
    reporter,
    server_allocations,
)
from virt_hooks.spawn import lifecycle


def write_options(path: Path, state: Path, lines: str = "") -> cfg.ConfigOpts:
    """Return nova-compute's options with a state directory."""
    path.write_text(f"[nova_accel]\nstate_dir = {state}\n{lines}")
    options = cfg.ConfigOpts()
    options([], default_config_files=[str(path)], default_config_dirs=[])
    return options


def make(
    options: cfg.ConfigOpts,
    life: lifecycle.Lifecycle,
    reporter_class: type[reporter.Reporter] = reporter.Reporter,
) -> reconcile.Reconciler:
    """Return the passes of a host; none runs yet."""
    return reconcile.Reconciler(
        background_pass.PassContext(
            options=options,
            refresh=lambda: None,
            reporter=reporter_class(
                life,
                server_allocations.ServerAllocations(None),
                provider_writer.ProviderWriter(None),
            ),
            recover=lambda: None,
        )
    )
