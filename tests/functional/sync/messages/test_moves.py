# SPDX-License-Identifier: Apache-2.0
"""Messages of plans of moves, each with its real cause."""

import json
import pathlib
from collections.abc import Iterator

import pytest

from nova_accel.model import names
from placement_sync.planning.defragmentation import move_run
from tests.functional.sync.fleet import test_defragmentation
from tests.functional.sync.messages import transcript
from tests.functional.sync.support import nova_standin, servers

VM = test_defragmentation.VM
DEFRAGMENT = "plan defragment --profile L40S-48A"


class Cloud(transcript.Transcript):
    """Transcript of commands about the moves of a site."""

    def __init__(self, site: test_defragmentation.Site) -> None:
        super().__init__(
            site.capsys,
            {
                str(site.place): "DIRECTORY",
                site.placement.url: "PLACEMENT",
                site.nova.url: "NOVA",
                # The uuids of servers are those of the plan's text.
                **{VM[n]: f"uuid-of-vm-{n}" for n in VM},
            },
        )
        self._endpoints = (
            *("--endpoint", site.placement.url),
            *("--compute-endpoint", site.nova.url),
        )

    def run_all(self, *lines: str) -> None:
        for line in lines:
            self.run(line, *self._endpoints)


@pytest.fixture
def site(
    placement: servers.Server,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[test_defragmentation.Site]:
    with nova_standin.serve() as nova:
        yield test_defragmentation.Site(placement, nova, tmp_path, capsys)


def test_moves(
    site: test_defragmentation.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_run, "PUBLISH_SECONDS", 0.0)
    cloud = Cloud(site)
    plan, nowhere = pathlib.Path(site.plan), f"{site.place}/nowhere/p.json"
    half = site.nova.servers[VM[1]]
    cloud.run_all(
        "plan defragment --count 2",
        f"{DEFRAGMENT} --model A40",
        f"{DEFRAGMENT} --count 0",
        f"{DEFRAGMENT} --moves 1",
        f"{DEFRAGMENT} --time-limit 0.000001",
        "plan defragment --profile A40-48Q",
        "plan defragment --model A40",
        "plan defragment --model l40s --moves 1",
        f"{DEFRAGMENT} -o {nowhere}",
        f"{DEFRAGMENT} --link 2980",
        f"plan apply {nowhere}",
        f"{DEFRAGMENT} -o {plan}",
        f"plan apply --dry-run {plan}",
    )
    text = plan.read_text()
    plan.write_text("{}")
    cloud.run_all(f"plan apply {plan}")
    plan.write_text(json.dumps({**json.loads(text), "format": 2}))
    cloud.run_all(f"plan apply {plan}")
    plan.write_text(text.replace('"kind": "live"', '"kind": "evacuation"'))
    cloud.run_all(f"plan apply {plan}")
    plan.write_text(text)

    # Differences before the first move.
    for change in (
        {"status": "PAUSED"},
        {"OS-EXT-SRV-ATTR:host": "node9"},
    ):
        before = {key: half[key] for key in change}
        half |= change
        cloud.run_all(f"plan apply {plan}")
        half |= before
    site.nova.servers.pop(VM[1])
    cloud.run_all(f"plan apply {plan}")
    site.nova.servers[VM[1]] = half

    # Moves that Nova refuses, that fail, and that are under way.
    first = json.loads(text)["moves"][0]["server"]
    site.cloud.refused[first] = "Live migration is not allowed."
    cloud.run_all(f"plan apply {plan}")
    del site.cloud.refused[first]
    site.cloud.stuck[VM[1]] = "the link is down"
    cloud.run_all(f"plan apply {plan}")
    del site.cloud.stuck[VM[1]]
    half["OS-EXT-STS:task_state"] = "migrating"
    cloud.run_all(f"plan apply --dry-run {plan}")
    half["OS-EXT-STS:task_state"] = None
    cloud.run_all(f"plan apply {plan}", DEFRAGMENT)

    # Another server takes the room.
    card = site.cloud.find_card("node1")
    traits = site.cloud.read_traits(card)
    site.cloud.set_traits(card, traits | {names.DRAINED_TRAIT})
    cloud.run_all(f"plan apply {plan}")
    site.nova.refused = ("/os-services",)
    cloud.run_all(DEFRAGMENT)
    cloud.check("moves")
