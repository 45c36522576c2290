# SPDX-License-Identifier: Apache-2.0
"""The script of a guest is run, with its paths below a directory."""

import json
import pathlib
import stat
import subprocess

import pytest

from placement_sync.licenses import guest_script, tokens
from tests.support.licenses import license_tokens
from tests.unit.docs import pages

generated = pages.extension("generated")
TOKEN = tokens.Token(path="t", text=license_tokens.build())
GPU = "0040\t10de1eb8\t2a\n"
OTHER = "0010\t1af41000\t2a\n"
# Fake systemctl: it has the unit "file", and logs restarts.
SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")"
case $1 in
cat) test -e unit ;;
restart) echo "$2" >> restarts ;;
esac
"""


class Guest:
    """Directory with the files of a guest."""

    def __init__(self, place: pathlib.Path, devices: str = GPU) -> None:
        self.nvidia, self.place = place / "nvidia", place
        self.nvidia.mkdir()
        (place / "devices").write_text(devices)
        (place / "systemctl").write_text(SYSTEMCTL)
        (place / "systemctl").chmod(0o755)
        (place / "unit").touch()

    def run(self, token: tokens.Token = TOKEN, feature: int = 1) -> None:
        script = guest_script.build_script(token, feature)
        for path, name in (
            ("/etc/nvidia", "nvidia"),
            ("/proc/bus/pci/devices", "devices"),
        ):
            script = script.replace(path, str(self.place / name))
        subprocess.run(
            ["/bin/sh"],
            input=script,
            text=True,
            check=True,
            env={"PATH": f"{self.place}:/usr/bin:/bin"},
        )

    @property
    def token(self) -> pathlib.Path:
        (path,) = (self.nvidia / "ClientConfigToken").iterdir()
        return path

    @property
    def restarts(self) -> list[str]:
        path = self.place / "restarts"
        return path.read_text().split() if path.exists() else []


def test_a_guest_gets_files_modes_and_a_restart(
    tmp_path: pathlib.Path,
) -> None:
    guest = Guest(tmp_path)
    guest.run()
    assert guest.token.name.startswith("client_configuration_token_")
    assert guest.token.suffix == ".tok"
    assert guest.token.read_text() == TOKEN.text
    assert stat.S_IMODE(guest.token.stat().st_mode) == 0o744
    conf = guest.nvidia / "gridd.conf"
    assert conf.read_text() == "FeatureType=1\n"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o644
    assert guest.restarts == ["nvidia-gridd.service"]


def test_other_options_of_the_image_stay(tmp_path: pathlib.Path) -> None:
    guest = Guest(tmp_path)
    conf = guest.nvidia / "gridd.conf"
    conf.write_text("# options\nFeatureType=0\nEnableUI=TRUE\n")
    guest.run(feature=4)
    guest.run(feature=4)
    assert conf.read_text() == "# options\nEnableUI=TRUE\nFeatureType=4\n"


def test_a_guest_without_a_gpu_gets_nothing(tmp_path: pathlib.Path) -> None:
    guest = Guest(tmp_path, OTHER)
    guest.run()
    assert list(guest.nvidia.iterdir()) == []
    assert guest.restarts == []


def test_a_guest_without_the_driver_keeps_the_token(
    tmp_path: pathlib.Path,
) -> None:
    guest = Guest(tmp_path)
    (tmp_path / "unit").unlink()
    guest.run()
    assert guest.token.read_text() == TOKEN.text
    assert guest.restarts == []


@pytest.mark.parametrize("text", ["$(touch hit)`touch hit`;&|\\{0}", "%s%d"])
def test_a_token_is_no_code(tmp_path: pathlib.Path, text: str) -> None:
    guest = Guest(tmp_path)
    guest.run(tokens.Token(path="t", text=text))
    assert guest.token.read_text() == text


def test_the_command_writes_a_file_for_nova_only(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = license_tokens.write(tmp_path, "t", TOKEN.text)
    output = tmp_path / "vendor_data.json"
    main, _ = generated.run_command("nova-accel")
    words = ["license", "vendordata", "--token", str(path), "-o", str(output)]
    assert main([*words, "--feature-type", "2"]) == 0
    content = json.loads(output.read_text())
    assert content == {
        "cloud-init": guest_script.build_script(TOKEN, feature=2)
    }
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    printed = capsys.readouterr()
    assert f"vendordata_jsonfile_path = {output}" in printed.out
    assert main(words) == 2
    printed_again = capsys.readouterr()
    assert "exists" in printed_again.err
    for text in (*printed, *printed_again):
        assert license_tokens.SECRET not in text
