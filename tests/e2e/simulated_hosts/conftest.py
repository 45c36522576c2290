# SPDX-License-Identifier: Apache-2.0
"""Three simulated hosts beside the lab's own, whose NVIDIA cards are on."""

import contextlib
from collections.abc import Iterator

import pytest

from nova_accel.model import names
from tests.e2e.support.simulated_site import Simulated
from tests.e2e.support.site import Site, wait_for

_LIB = '. "$LAB_GUEST/lib.sh"'
# A pass keeps what it finds to be free; the next one removes it.
_OFTEN = "[DEFAULT]\nupdate_resources_interval = 10\n"


def _report_cards(lab: Site) -> None:
    """Restart nova-compute; return when no card is missing any more."""
    overlay = lab.layout.etc / "often.conf"
    overlay.write_text(_OFTEN)
    lab.cloud.restart_compute(overlay)
    wait_for(
        lambda: (
            not any(
                names.MISSING_TRAIT in device.traits
                for device in lab.providers().values()
            )
        ),
        "the missing cards to go",
    )
    lab.cloud.restart_compute()


@pytest.fixture(scope="package")
def hosts(
    lab: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Simulated]:
    simulated = Simulated(lab, tmp_path_factory.mktemp("hosts"))
    with contextlib.ExitStack() as undo:
        undo.callback(lab.cloud.restart_compute)
        undo.callback(lab.on_host, f"{_LIB}; lab_nvidia off")
        undo.callback(simulated.stop)
        undo.callback(lab.clean)
        lab.on_host(f"{_LIB}; lab_nvidia mdev")
        _report_cards(lab)
        simulated.start()
        yield simulated
