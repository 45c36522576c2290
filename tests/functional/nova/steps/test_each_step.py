# SPDX-License-Identifier: Apache-2.0
"""Law: what fails anywhere is undone at once, or ended by the next pass.

Each step of an operation fails, loses its answer, is done twice, or is never
reached, since nova-compute is killed before it; then the server may be
deleted before the next nova-compute starts. An operation that fails has left
nothing at once, before any pass. Afterwards Nova, Placement, claims, kernel
and guests agree, the server serves, and its delete leaves nothing: this is
what the judge of the campaign compares.
"""

import pytest

from tests.functional.nova.support import releases

if not releases.is_on_threads():
    pytest.skip("the campaign has native threads", allow_module_level=True)

from tests.campaign import campaign, faults, world
from tests.functional.nova.steps import trials
from virt_hooks.attach import attach_recovery, hot_attach
from virt_hooks.operations import nova_database, server_partitions
from virt_hooks.report import claim_checks
from virt_hooks.spawn import orphan_cleanup

#: Operations and technologies that run each time.
_USUAL = {("mdev", "boot"), ("whole", "delete")}
#: Technologies that differ in what they do to the kernel.
_TECHNOLOGIES = (
    *("mdev", "typed_vf", "plain_vf", "whole", "region", "blanked_region"),
)
#: Of which a host has two: a resize to two of them, there, needs three.
_PAIRS = ("plain_vf", "whole")
_CASES = [
    (technology, name)
    for technology in _TECHNOLOGIES
    for name in trials.OPERATIONS
    if not (technology in _PAIRS and name.startswith("resize_here"))
]


@pytest.mark.parametrize(
    ("technology", "name"),
    [
        pytest.param(*case, marks=[] if case in _USUAL else [pytest.mark.long])
        for case in _CASES
    ],
)
def test_each_step(technology: str, name: str) -> None:
    if not trials.is_due(_CASES.index((technology, name))):
        pytest.skip("a whole run of another day has it")
    operation = trials.OPERATIONS[name]
    waiting: list[trials.Trial] | None = None
    failures: list[str] = []
    struck = 0

    def body(place: world.World) -> None:
        nonlocal waiting, struck
        if waiting is None:
            listed = [*trials.list_trials(trials.record(place, operation))]
            assert listed, "the operation has no step"
            waiting = list(trials.choose(listed))
        while waiting:
            trial = waiting.pop(0)
            report = trials.run(place, operation, trial)
            struck += bool(report.struck)
            line = f"{name}, {trial}"
            print(line, report.findings or "ok", flush=True)
            failures.extend(f"{line}: {text}" for text in report.findings)
            if not report.is_clean:
                return

    while waiting is None or waiting:
        campaign.in_a_world(technology, body)
    assert failures == []
    assert struck, "no step was reached again"


@pytest.mark.long
def test_a_step_that_is_not_undone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of a spawn that failed is released."""
    monkeypatch.setattr(
        server_partitions.ServerPartitions, "release", lambda *_: None
    )
    monkeypatch.setattr(
        claim_checks.Consumers, "release_unbacked", lambda *_: None
    )
    findings: list[str] = []

    def body(place: world.World) -> None:
        fault = faults.Fault("libvirt", 0, 10_000)
        trial = trials.Trial("fails", "libvirt", fault)
        report = trials.run(place, trials.OPERATIONS["boot"], trial)
        findings.extend(report.findings)

    campaign.in_a_world("mdev", body)
    assert any(text.startswith("leaked: mdev") for text in findings)


#: Operations, a step of each that fails, the kind of fact that remains without
#: its undo, and the function that is the undo.
_UNDOES = [
    *(
        pytest.param(
            *(name, "createWithFlags", "claim"),
            (server_partitions.ServerPartitions, "release", None),
            id=name,
        )
        for name in ("boot", "unshelve", "resize_here")
    ),
    pytest.param(
        *("live_migrate", "migrateToURI3", "claim"),
        (server_partitions.ServerPartitions, "release", None),
        id="live_migrate",
    ),
    pytest.param(
        *("rebuild", "createWithFlags", "claim"),
        (nova_database, "is_rebuilt", False),
        id="rebuild",
    ),
    pytest.param(
        *("attach", "attachDeviceFlags", "claim"),
        (attach_recovery.AttachRecovery, "finish_removal", None),
        id="attach",
    ),
    pytest.param(
        *("detach", "detachDeviceFlags", "guest"),
        (hot_attach.HotAttach, "_restore", None),
        id="detach",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "step", "kind", "undo"), _UNDOES)
def test_an_operation_that_is_undone_later_is_found(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    step: str,
    kind: str,
    undo: tuple[object, str, object],
) -> None:
    """A pass would undo it, too: until then its device is in the way."""
    owner, function, answer = undo
    findings: list[list[str]] = []

    def body(place: world.World) -> None:
        operation = trials.OPERATIONS[name]
        *_, trial = (
            trial
            for trial in trials.list_trials(trials.record(place, operation))
            if (trial.law, trial.step.rpartition(".")[2]) == ("fails", step)
        )
        findings.append(trials.run(place, operation, trial).findings)
        monkeypatch.setattr(owner, function, lambda *_, **__: answer)
        findings.append(trials.run(place, operation, trial).findings)

    campaign.in_a_world("mdev", body)
    undone, pending = findings
    assert undone == []
    assert any(
        text.startswith(f"not undone: {name}: {kind} ") for text in pending
    ), pending


@pytest.mark.long
def test_an_orphan_of_a_killed_service_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server is gone: only the cleanup of orphans can remove it."""
    findings: list[list[str]] = []

    def body(place: world.World) -> None:
        operation = trials.OPERATIONS["boot"]
        (trial,) = (
            trial
            for trial in trials.list_trials(trials.record(place, operation))
            if trial.law == trials.FORGOTTEN
            and trial.step.endswith("defineXML")
        )
        findings.append(trials.run(place, operation, trial).findings)
        monkeypatch.setattr(
            orphan_cleanup.OrphanCleanup, "run", lambda *_, **__: None
        )
        findings.append(trials.run(place, operation, trial).findings)

    campaign.in_a_world("mdev", body)
    with_cleanup, without = findings
    assert with_cleanup == []
    assert any(text.startswith("leaked: mdev") for text in without)
