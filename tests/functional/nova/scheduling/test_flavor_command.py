# SPDX-License-Identifier: Apache-2.0
"""The flavor author's commands, with Nova's own API and scheduler."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import fixtures
import pytest

from nova_accel.model import names
from tests.functional.nova.scheduling import scheduled
from tests.functional.nova.support import harness
from tests.functional.sync.commands import programs

FLAVOR = "gpu.one"
NODES = ("host1", "host2")


class FlavorCommand(scheduled.CommandTestBase):
    def run_command(self, *words: str, status: int = 0) -> str:
        """Return the command's output; its error output if it must fail."""
        out, err = self.run_both(*words, status=status)
        return err if status else out

    def run_both(self, *words: str, status: int = 0) -> tuple[str, str]:
        """Return the command's output and its error output."""
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            exit_status = programs.main(
                [
                    *words,
                    "--endpoint",
                    self.placement.fixture.endpoint,
                    *self._nova(words),
                ]
            )
        self.assertEqual(status, exit_status, out.getvalue() + err.getvalue())
        return out.getvalue(), err.getvalue()

    def _nova(self, words: tuple[str, ...]) -> tuple[str, ...]:
        if words[0] != "flavor":
            return ()
        return ("--compute-endpoint", self.api_fixture.base_url)

    def show_flavor(self, name: str = FLAVOR) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(
            self.run_command("flavor", "show", name, "-f", "json")
        )
        return record

    def add_flavor(self, name: str = FLAVOR, **specs: str) -> str:
        """Return the id of a new flavor."""
        flavor_id: str = self._create_flavor(
            name=name,
            extra_spec=specs,
            memory_mb=256,
            vcpu=1,
            disk=1,
            ephemeral=0,
        )
        return flavor_id

    def specs(self, flavor: str) -> dict[str, str]:
        specs: dict[str, str] = self.admin_api.api_get(
            f"/flavors/{flavor}/os-extra_specs"
        ).body["extra_specs"]
        return specs

    def create(self, flavor: str) -> Any:
        return self._create_server(
            image_uuid=harness.IMAGE, flavor_id=flavor, networks="none"
        )

    def pinned(self) -> dict[str, set[str]]:
        """Return the pin traits, by provider uuid."""
        return {
            uuid: pins
            for host in self.computes
            for uuid, record in self.providers(host).items()
            if (
                pins := {
                    t
                    for t in record["traits"]
                    if t.startswith(names.PIN_PREFIX)
                }
            )
        }

    # -- the tests ----------------------------------------------------------

    def test_a_created_flavor_gets_its_server(self) -> None:
        self.start_host(*harness.TWO_T4)
        words = "flavor", "create", "gpu.new", "--vcpus", "1", "--ram", "256"
        for refused in (("--profile", "X9-9Z"), ("--class", "CUSTOM_NONE")):
            self.run_command(*words, *refused, status=2)
        self.run_command(*words, "--profile", "T4-4Q", "--dry-run")
        names_of = self.admin_api.api_get("/flavors").body["flavors"]
        self.assertNotIn("gpu.new", [each["name"] for each in names_of])
        printed = self.run_command(*words, "--profile", "T4-4Q", "-f", "json")
        created = json.loads(printed)
        self.assertTrue(created["is_written"])
        flavor = created["flavor"]["id"]
        self.assertEqual(self.specs(flavor), created["set"])
        self.assertEqual(1, len(self.mdevs_of(self.create(flavor))))
        error = self.run_command(*words, "--profile", "T4-4Q", status=1)
        self.assertIn("409", error)

    def import_flavors(
        self, content: Any, *words: str, status: int = 0
    ) -> Any:
        """Return flavors and results of an import; the error of a failure."""
        path = Path(self.useFixture(fixtures.TempDir()).path) / "flavors.json"
        path.write_text(json.dumps(content))
        command = ("flavor", "import", str(path), *words, "-f", "json")
        output = self.run_command(*command, status=status)
        if status:
            return output
        rows = json.loads(output)
        return {row["Flavor"]: row["Result"] for row in rows}

    def test_converted_flavors_are_served_and_converted_back(self) -> None:
        self.start_host(*harness.TWO_T4)
        native = {"resources:VGPU": "1", "hw:cpu_policy": "shared"}
        alias = {"pci_passthrough:alias": "t4:1"}
        flavors = {
            name: (self.add_flavor(name, **specs), specs)
            for name, specs in (("vgpu", native), ("pci", alias), ("no", {}))
        }
        served = harness.vgpu_group("_GPU", "4Q")
        lines = (
            {"replace": {"resources:VGPU": "1"}, "by": served},
            {"replace": alias, "by": harness.vgpu_group("_GPU", "8Q")},
        )
        path = Path(self.useFixture(fixtures.TempDir()).path) / "lines.json"
        first, second = map(json.dumps, lines)
        path.write_text(f"native_flavors = {first}\n\n{second}\n")
        command = ("flavor", "convert", str(path))
        dry = self.run_command(*command, "--dry-run")
        self.assertEqual(2, dry.count("would be changed"))
        self.assertEqual(native, self.specs(flavors["vgpu"][0]))
        self.run_command(*command)
        self.assertEqual(
            served | {"hw:cpu_policy": "shared"},
            self.specs(flavors["vgpu"][0]),
        )
        for name in ("vgpu", "pci"):
            server = self.create(flavors[name][0])
            self.assertEqual(1, len(self.mdevs_of(server)))
        self.assertIn("No line applies", self.run_command(*command))
        self.run_command(*command, "--undo")
        for flavor, specs in flavors.values():
            self.assertEqual(specs, self.specs(flavor))

    @pytest.mark.long
    def test_imported_flavors_get_their_servers(self) -> None:
        self.start_host(*harness.TWO_T4)
        specs = {
            **harness.vgpu_group("_GPU1", "4Q"),
            "hw:cpu_policy": "shared",
        }
        sizes = {"vcpus": 1, "ram": 256, "disk": 1}
        content: list[dict[str, Any]] = [
            {"name": "gpu.new", **sizes, "properties": specs},
            {"name": "plain", **sizes, "properties": {}},
        ]
        expected = {"gpu.new": "would be created", "plain": "skipped"}
        self.assertEqual(expected, self.import_flavors(content, "--dry-run"))
        expected["gpu.new"] = "created"
        self.assertEqual(expected, self.import_flavors(content))
        listed = self.admin_api.api_get("/flavors").body["flavors"]
        ids = {each["name"]: each["id"] for each in listed}
        self.assertNotIn("plain", ids)
        self.assertEqual(specs, self.specs(ids["gpu.new"]))
        self.assertEqual(1, len(self.mdevs_of(self.create(ids["gpu.new"]))))
        expected["gpu.new"] = "unchanged"
        self.assertEqual(expected, self.import_flavors(content))
        content[0]["properties"] = harness.vgpu_group("_GPU1", "8Q")
        self.assertEqual("changed", self.import_flavors(content)["gpu.new"])
        self.assertEqual(
            {**content[0]["properties"], "hw:cpu_policy": "shared"},
            self.specs(ids["gpu.new"]),
        )
        content[0]["vcpus"] = 2
        error = self.import_flavors(content, status=2)
        self.assertIn("Nova can't change the sizes", error)

    @pytest.mark.long
    def test_what_commands_print_is_imported(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor(**harness.vgpu_group("_GPU1", "4Q"))
        record = self.show_flavor()
        self.assertEqual({FLAVOR: "unchanged"}, self.import_flavors(record))
        profiles = json.loads(
            self.run_command("profile", "list", "-f", "json")
        )
        error = self.import_flavors(profiles, status=2)
        self.assertIn("{profile}", error)
        words = ("--name", "gpu.{profile}", "--vcpus", "1")
        error = self.import_flavors(profiles, *words, status=2)
        self.assertIn("--vcpus and --ram", error)
        results = self.import_flavors(profiles, *words, "--ram", "256")
        self.assertEqual("created", results["gpu.t4-4q"])
        listed = self.admin_api.api_get("/flavors").body["flavors"]
        (copy,) = (f["id"] for f in listed if f["name"] == "gpu.t4-4q")
        self.assertEqual(self.specs(flavor), self.specs(copy))

    def test_a_profile_without_a_licence_is_refused(self) -> None:
        self.start_host(*harness.TWO_T4)
        place = Path(self.useFixture(fixtures.TempDir()).path)
        conf = place / "nova.conf"
        conf.write_text("[nova_accel]\nlicensed_series = C\n")
        words = (
            *("flavor", "create", "gpu.new", "--vcpus", "1", "--ram", "256"),
            *("--config-file", str(conf), "--dry-run", "--profile"),
        )
        error = self.run_command(*words, "T4-4Q", status=2)
        self.assertIn("T4-4Q needs a licence of series Q", error)
        self.run_command(*words, "T4-4C")
        content = {
            "name": "gpu.new",
            **{"vcpus": 1, "ram": 256, "disk": 1},
            "properties": harness.vgpu_group("_GPU1", "4Q"),
        }
        error = self.import_flavors(
            [content], "--config-file", str(conf), status=2
        )
        self.assertIn("T4-4Q needs a licence of series Q", error)

    @pytest.mark.long
    def test_a_flavor_that_is_set_gets_its_server(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor(**{"hw:cpu_policy": "shared"})
        self.run_command(
            *("flavor", "set", FLAVOR, "--profile", "GRID T4-4Q"),
            *("--packing", "spread"),
        )
        self.assertEqual(
            {
                "hw:cpu_policy": "shared",
                "resources_GPU1:VGPU": "1",
                "resources_GPU1:CUSTOM_GPU_MEMORY_MB": "4096",
                "trait_GPU1:CUSTOM_VGPU_NVIDIA_T4_4Q": "required",
                "accelerator:packing": "spread",
            },
            self.specs(flavor),
        )
        before = self.show_flavor()
        self.assertEqual((True, 8), (before["can_be_served"], before["room"]))
        server = self.create(flavor)
        self.assertEqual(1, len(self.mdevs_of(server)))
        self.assertEqual(7, self.show_flavor()["room"])
        text = self.run_command("flavor", "show", flavor)
        self.assertIn(
            "GPU: 1 x T4-4Q, VGPU 1, CUSTOM_GPU_MEMORY_MB 4096", text
        )
        self.assertIn("numa_policy: preferred (default)", text)
        self.assertRegex(text, r"\| room +\| 7 ")

    @pytest.mark.long
    def test_an_exclusive_flavor_takes_the_whole_card(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor()
        words = "flavor", "set", FLAVOR, "--packing", "exclusive"
        self.run_command(*words, "--profile", "T4-4Q")
        self.assertEqual(
            "16384", self.specs(flavor)["resources_GPU1:CUSTOM_GPU_MEMORY_MB"]
        )
        self.assertEqual(2, self.show_flavor()["room"])
        self.create(flavor)
        self.assertEqual(1, self.show_flavor()["room"])
        self.run_command("flavor", "set", FLAVOR, "--profile", "T4-4Q")
        _, error = self.run_both(*words)
        self.assertIn("packing exclusive needs the whole device", error)

    @pytest.mark.long
    def test_several_and_then_none(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor()
        self.run_command(
            *("flavor", "set", FLAVOR, "--profile", "T4-16Q"),
            *("--count", "2", "--locality", "different_card"),
        )
        self.assertEqual("none", self.specs(flavor)["group_policy"])
        server = self.create(flavor)
        self.assertEqual(2, len(self.allocations(server)))
        record = self.show_flavor()
        self.assertEqual((False, 0), (record["can_be_served"], record["room"]))
        self.assertIn("VGPU", record["reason"])
        self.run_command("flavor", "set", FLAVOR, "--clear")
        self.assertEqual({}, self.specs(flavor))

    @pytest.mark.long
    def test_a_pinned_server_lands_there(self) -> None:
        self.start_host(*harness.TWO_T4, name=NODES[0])
        self.start_host(*harness.TWO_T4, name=NODES[1])
        flavor = self.add_flavor()
        for host, card in (
            (NODES[1], harness.T4_B),
            (NODES[0], harness.T4),
        ):
            self.run_command(
                *("flavor", "set", FLAVOR, "--profile", "T4-8Q"),
                *("--device", f"{host}/{card}"),
            )
            provider = self.provider(card, host)
            # The earlier pin's trait is gone from its card.
            self.assertEqual(
                {provider: {names.pin_trait(host, card)}}, self.pinned()
            )
            server = self.create(flavor)
            self.assertEqual([provider], list(self.allocations(server)))
        # Nova's own reports keep it.
        self.run_periodics()
        self.assertEqual([provider], list(self.pinned()))
        text = self.run_command("flavor", "show", FLAVOR)
        self.assertIn("only host1_accel_0000_3b_00_0", text)

    @pytest.mark.long
    def test_a_pin_that_another_flavor_wants_stays(self) -> None:
        self.start_host(*harness.TWO_T4)
        for name in (FLAVOR, "gpu.two"):
            self.add_flavor(name)
            self.run_command(
                *("flavor", "set", name, "--profile", "T4-8Q"),
                *("--device", f"host1/{harness.T4}"),
            )
        self.run_command("flavor", "set", FLAVOR, "--clear")
        self.assertEqual(1, len(self.pinned()))
        self.run_command("flavor", "set", "gpu.two", "--profile", "T4-8Q")
        self.assertEqual({}, self.pinned())

    @pytest.mark.long
    def test_unusable_input_is_refused(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor()

        def refused(*words: str) -> str:
            error = self.run_command("flavor", "set", FLAVOR, *words, status=2)
            self.assertEqual({}, self.specs(flavor))
            self.assertEqual(1, error.count("\n"))
            return error

        self.assertIn("similar: T4-4Q", refused("--profile", "T4-4X"))
        self.assertIn(
            "accelerator:display=on",
            refused("--profile", "T4-4Q", "--ramfb", "on"),
        )
        self.assertIn(
            "0000:3b:00.0",
            refused("--profile", "T4-4Q", "--device", "host1/0000:99:00.0"),
        )
        self.assertIn("settings without a", refused("--count", "2"))
        self.run_command(
            "flavor", "set", "nix", "--profile", "T4-4Q", status=2
        )

    @pytest.mark.long
    def test_a_flavor_that_no_host_can_serve_is_set_with_a_warning(
        self,
    ) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor()

        def warning(*words: str) -> str:
            words = ("flavor", "set", FLAVOR, *words)
            out, err = self.run_both(*words)
            self.assertIn("resources_GPU1:VGPU", self.specs(flavor))
            self.assertIn("+ ", out)
            self.assertIn("warning: no host can serve it now: ", err)
            return err

        self.assertIn(
            "2 cards of other models: 2 NVIDIA T4",
            warning("--profile=A40-8Q"),
        )
        many = ("--profile", "T4-16Q", "--count")
        self.assertIn("all groups together", warning(*many, "3"))
        self.assertIn("NVLink", warning(*many, "2", "--locality=nvlink"))
        self.assertFalse(self.show_flavor()["can_be_served"])

    @pytest.mark.long
    def test_series_are_not_mixed_unless_forced(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor()
        self.run_command("flavor", "set", FLAVOR, "--profile", "T4-4Q")
        other = ("flavor", "set", FLAVOR, "--profile", "T4-4C")
        error = self.run_command(*other, "--group", "CUDA", status=2)
        self.assertIn("one series (C, Q)", error)
        self.assertNotIn("resources_CUDA1:VGPU", self.specs(flavor))
        dry = self.run_command(*other, "--group=CUDA", "--force", "--dry-run")
        self.assertIn("+ resources_CUDA1:VGPU=1", dry)
        self.assertNotIn("resources_CUDA1:VGPU", self.specs(flavor))
        self.run_command(*other, "--group", "CUDA", "--force")
        self.assertIn("resources_CUDA1:VGPU", self.specs(flavor))
        self.assertIn("one series", self.show_flavor()["reason"])

    @pytest.mark.long
    def test_profiles_are_counted_down(self) -> None:
        self.start_host(*harness.TWO_T4)
        flavor = self.add_flavor()
        self.run_command("flavor", "set", FLAVOR, "--profile", "T4-16Q")

        def free() -> dict[str, int]:
            words = ("profile", "list", "--all", "-f", "json")
            rows = json.loads(self.run_command(*words))
            return {row["Profile"]: row["Free"] for row in rows}

        self.assertEqual((2, 8), (free()["T4-16Q"], free()["T4-4Q"]))
        self.create(flavor)
        self.assertEqual((1, 4), (free()["T4-16Q"], free()["T4-4Q"]))
        self.create(flavor)
        self.assertEqual((0, 0), (free()["T4-16Q"], free()["T4-4Q"]))
        text = self.run_command("profile", "list", "--all")
        self.assertIn("Offered is False", text)
        text = self.run_command("profile", "list")
        self.assertIn("No profile is free; --all lists all", text)
        # A profile that is full now is no reason to refuse a flavor.
        self.run_command("flavor", "set", FLAVOR, "--profile", "T4-8Q")
