# SPDX-License-Identifier: Apache-2.0
"""Command ``openstack accel explain`` with a real Placement."""

import json
import uuid
from typing import Any

import pytest

from nova_accel.model import names
from placement_sync.client import cloud_client
from placement_sync.fleet.explain import explain_command, simulation
from placement_sync.fleet.flavors import cloud as offered
from tests.functional.sync.commands import programs
from tests.functional.sync.support.servers import Server

PROFILE = "CUSTOM_VGPU_NVIDIA_T4_4Q"
MODEL = "CUSTOM_ACCELERATOR_MODEL_NVIDIA_T4"
DISABLED = "COMPUTE_STATUS_DISABLED"
ONE = (
    "resources_A:VGPU=1",
    "resources_A:CUSTOM_GPU_MEMORY_MB=4096",
    f"trait_A:{PROFILE}=required",
    "accelerator:numa_policy=none",
)


class Cloud:
    """Hosts of T4s in Placement."""

    def __init__(self, placement: Server) -> None:
        self.call = placement.call
        for trait in (
            PROFILE,
            MODEL,
            names.OWNER_TRAIT,
            names.DRAINED_TRAIT,
            names.layout_trait("equal"),
        ):
            self.call("PUT", f"/traits/{trait}")
        self.call("PUT", f"/resource_classes/{names.GPU_MEMORY_CLASS}")

    def add(
        self,
        name: str,
        inventories: dict[str, int],
        *traits: str,
        parent: str | None = None,
    ) -> str:
        own = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.call(
            "POST",
            "/resource_providers",
            {"name": name, "uuid": own, "parent_provider_uuid": parent},
        )
        path = f"/resource_providers/{own}"
        self.call(
            "PUT",
            f"{path}/inventories",
            {
                "inventories": {
                    c: {"total": n} for c, n in inventories.items()
                },
                "resource_provider_generation": 0,
            },
        )
        self.call(
            "PUT",
            f"{path}/traits",
            {"traits": list(traits), "resource_provider_generation": 1},
        )
        return own

    def host(self, name: str, cards: str, *traits: str) -> list[str]:
        root = self.add(
            name, {"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 99}, *traits
        )
        return [self.card(f"{name}_accel_{card}", root) for card in cards]

    def card(self, name: str, root: str) -> str:
        return self.add(
            name,
            {"VGPU": 16, names.GPU_MEMORY_CLASS: 16384},
            *self.usual,
            PROFILE,
            parent=root,
        )

    usual = (names.OWNER_TRAIT, MODEL, names.layout_trait("equal"))

    def traits(self, provider: str, *traits: str) -> None:
        path = f"/resource_providers/{provider}/traits"
        generation = self.call("GET", path)["resource_provider_generation"]
        self.call(
            "PUT",
            path,
            {
                "traits": [*self.usual, *traits],
                "resource_provider_generation": generation,
            },
        )

    def allocate(self, provider: str, **amounts: int) -> None:
        self.call(
            "PUT",
            f"/allocations/{uuid.uuid4()}",
            {
                "allocations": {provider: {"resources": amounts}},
                "consumer_generation": None,
                "project_id": "other",
                "user_id": "other",
                "consumer_type": "INSTANCE",
            },
        )

    def allocate_mb(self, provider: str, *sizes: int) -> None:
        for size in sizes:
            self.allocate(provider, VGPU=1, **{names.GPU_MEMORY_CLASS: size})


@pytest.fixture
def cloud(placement: Server) -> Cloud:
    return Cloud(placement)


@pytest.fixture
def explain(placement: Server, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command: status, stdout, stderr."""

    def run(*words: str, specs: tuple[str, ...] = ONE) -> tuple[int, str, str]:
        options = [word for spec in specs for word in ("--extra-spec", spec)]
        status = programs.main(
            ["explain", "--endpoint", placement.url, *options, *words]
        )
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def cells(text: str, card: str) -> str:
    """Return a card's row, with one blank between the columns."""
    (row,) = [row for row in text.splitlines() if f"| {card} " in row]
    return " ".join(row.replace("|", " ").split())


def test_each_card_has_a_verdict_and_a_reason(
    cloud: Cloud, explain: Any
) -> None:
    full, drained, fine, elsewhere = cloud.host("one", "abcd")
    cloud.allocate_mb(full, 4096, 4096, 4096, 4096)
    cloud.traits(drained, PROFILE, names.DRAINED_TRAIT)
    cloud.traits(elsewhere)
    cloud.allocate_mb(fine, 4096)

    status, text, _ = explain()

    assert status == 0
    assert cells(text, "c") == "one c first"
    assert "CUSTOM_GPU_MEMORY_MB 0 of 16384 left, 4096 needed" in cells(
        text, "a"
    )
    assert cells(text, "a").startswith("one a left out")
    assert f"one d left out does not offer {PROFILE} now" in cells(text, "d")
    assert "1 of 1 hosts can serve the flavor now." in text


def test_a_refusal_of_the_filter_is_printed(
    cloud: Cloud, explain: Any
) -> None:
    """Placement counts memory, but a T4 has partitions of one size only."""
    (card,) = cloud.host("one", "a")
    cloud.allocate_mb(card, 8192)

    status, text, _ = explain()

    assert status == 1
    line = cells(text, "a")
    assert line.startswith("one a refused ")
    assert "T4-4Q has no place beside" in line
    assert "0 of 1 hosts can serve the flavor now." in text


def test_unsuitable_hosts_are_listed(
    cloud: Cloud, explain: Any, placement: Server
) -> None:
    cloud.host("off", "a", DISABLED)
    cloud.host("poor", "b")
    cloud.host("rich", "c")
    root = str(uuid.uuid5(uuid.NAMESPACE_DNS, "poor"))
    cloud.allocate(root, VCPU=16)

    status, text, _ = explain(specs=(*ONE, "resources:VCPU=4"))

    assert status == 0
    assert "off a left out the host's compute service is disabled" in cells(
        text, "a"
    )
    assert "poor b left out" in cells(text, "b")
    assert cells(text, "c") == "rich c first"


def test_a_disabled_host_is_a_further_reason(
    cloud: Cloud, explain: Any
) -> None:
    """Its cards would serve no server either, once it is enabled."""
    full, drained = cloud.host("off", "ab", DISABLED)
    cloud.allocate_mb(full, 4096, 4096, 4096, 4096)
    cloud.traits(drained, names.DRAINED_TRAIT)

    _, text, _ = explain()

    disabled = "the host's compute service is disabled"
    assert cells(text, "a").endswith(f"left, 4096 needed; {disabled}")
    assert cells(text, "b").endswith(f"drained by its operator; {disabled}")


def test_one_host_alone(cloud: Cloud, explain: Any) -> None:
    cloud.host("one", "ab")
    cloud.host("two", "cd")

    status, text, _ = explain("--host", "two", "--long", "-f", "json")

    rows = json.loads(text)
    assert status == 0
    assert {(r["Host"], r["Fits"], r["Refused"]) for r in rows} == {
        ("two", 2, 0)
    }
    assert sorted(row["Verdict"] for row in rows) == ["first", "fits"]


def test_rows_are_selected_sorted_and_formatted(
    cloud: Cloud, explain: Any
) -> None:
    full, _ = cloud.host("one", "ab")
    cloud.allocate_mb(full, 4096, 4096, 4096, 4096)

    rows = ("-c", "Card", "-c", "verdict")
    status, text, _ = explain(*rows, "-f", "value", "--sort-column", "verdict")
    assert (status, text) == (0, "b first\na left out\n")
    _, text, _ = explain(*rows, "-f", "json", "--host", "one")
    assert json.loads(text) == [
        {"Card": "a", "Verdict": "left out"},
        {"Card": "b", "Verdict": "first"},
    ]
    status, text, error = explain("-c", "Model")
    assert (status, text) == (2, "")
    assert "Host, Card, Verdict, Why" in error


def test_two_groups_are_requested_together(cloud: Cloud, explain: Any) -> None:
    cloud.host("one", "a")
    cloud.host("two", "bc")
    specs = (
        *ONE,
        "resources_B:VGPU=1",
        f"trait_B:{PROFILE}=required",
        "group_policy=isolate",
    )

    status, text, _ = explain(specs=specs)

    assert status == 0
    assert cells(text, "a") == (
        "one a left out the host does not have all groups together"
    )
    assert cells(text, "b").startswith("two b first")
    assert "1 of 2 hosts" in text


MIG = (
    "resources_A:VGPU=1",
    "resources_A:CUSTOM_GPU_MEMORY_MB=20480",
    "resources_A:CUSTOM_MIG_SLICE=4",
    "trait_A:CUSTOM_VGPU_NVIDIA_A100_4_20C=required",
    "accelerator:numa_policy=none",
)


def add_a100(cloud: Cloud, name: str, *traits: str) -> None:
    """Add a host with an A100 in MIG mode and partitions by their traits."""
    root = cloud.add(name, {"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 99})
    every = (
        *(names.OWNER_TRAIT, names.layout_trait("mig"), *traits),
        "CUSTOM_ACCELERATOR_MODEL_NVIDIA_A100",
        "CUSTOM_VGPU_NVIDIA_A100_1_5C",
    )
    for trait in every:
        cloud.call("PUT", f"/traits/{trait}")
    cloud.call("PUT", f"/resource_classes/{names.MIG_SLICE_CLASS}")
    cloud.add(
        f"{name}_accel_a",
        {"VGPU": 7, names.GPU_MEMORY_CLASS: 40960, names.MIG_SLICE_CLASS: 7},
        *every,
        parent=root,
    )


def test_cards_of_other_models_are_one_line(
    cloud: Cloud, explain: Any
) -> None:
    cloud.host("one", "bcd")
    add_a100(cloud, "mig")

    status, text, _ = explain()

    assert status == 0
    assert "Left out: 1 card of other models: 1 NVIDIA A100 (--long" in text
    assert "| mig " not in text
    _, text, _ = explain("--long")
    assert "| of another model |" in text
    _, text, _ = explain("-f", "json")
    rows = json.loads(text)
    assert [r["Why"] for r in rows if r["Host"] == "mig"] == [
        "of another model"
    ]


def test_a_card_of_another_vendor_is_of_another_model(
    cloud: Cloud, explain: Any
) -> None:
    """Its model may be in no catalog; MIG mode is not what it lacks."""
    add_a100(cloud, "mig")
    root = cloud.add("flex", {"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 99})
    traits = (names.OWNER_TRAIT, f"{names.DEVICE_PREFIX}8086_56C0")
    for trait in (*traits, "CUSTOM_VGPU_NVIDIA_A100_4_20C"):
        cloud.call("PUT", f"/traits/{trait}")
    capacity = {"VGPU": 4, names.GPU_MEMORY_CLASS: 14336}
    cloud.add("flex_accel_a", capacity, *traits, parent=root)

    _, text, _ = explain(specs=MIG)

    assert "Left out: 1 card of other models: 1 8086:56c0" in text
    assert "MIG mode" not in text


def test_a_drained_card_has_the_reason_of_its_drain(
    cloud: Cloud, placement: Server
) -> None:
    (card,) = cloud.host("one", "a")
    cloud.traits(card, names.DRAINED_TRAIT)
    client = cloud_client.from_endpoint(placement.url)
    specs = dict(spec.split("=", 1) for spec in ONE)

    result = explain_command.simulate(
        client,
        simulation.SimulatedRequest(specs=specs),
        offered.read(client),
        drains={card: "fan fails (ops, 2d)"},
    )

    reason = "drained by its operator: fan fails (ops, 2d)"
    assert [c.why for h in result.hosts for c in h.cards] == [reason]
