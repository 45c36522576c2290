# SPDX-License-Identifier: Apache-2.0
"""Token files are read, and their text gets into no message."""

import logging
import pathlib
import traceback

import pytest

from nova_accel.host import host_paths
from placement_sync.licenses import tokens
from tests.support.licenses import license_tokens

PROJECT = "0f4c6a0c2f0b4b0e9d3b6a2f5f0c1d2e"


def test_servers_are_those_of_the_token(tmp_path: pathlib.Path) -> None:
    text = license_tokens.build("10.0.0.9", 443, 8443)
    token = tokens.read(str(license_tokens.write(tmp_path, "a", text)))
    assert token.text == text
    assert token.list_servers() == (("10.0.0.9", 443), ("10.0.0.9", 8443))


@pytest.mark.parametrize(
    "text", ["opaque-token", "a.b.c", "a.W10.c", "a.eyJhIjogMX0.c", "a.!!.c"]
)
def test_a_token_of_another_form_has_no_servers(text: str) -> None:
    assert tokens.Token(path="t", text=text).list_servers() == ()


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (license_tokens.SECRET, 0o644, "every user can read it"),
        (f"{license_tokens.SECRET} b", 0o600, "has no token"),
        (f"{license_tokens.SECRET}'", 0o600, "has no token"),
        ("", 0o600, "has no token"),
        (license_tokens.SECRET * 4096, 0o600, "has no token"),
    ],
)
def test_a_file_that_is_no_token_is_refused_without_its_text(
    tmp_path: pathlib.Path, content: str, mode: int, reason: str
) -> None:
    path = license_tokens.write(tmp_path, "default", content)
    path.chmod(mode)
    with pytest.raises(tokens.TokenError, match=reason) as caught:
        tokens.read(str(path))
    lines = "".join(traceback.format_exception(caught.value))
    assert license_tokens.SECRET not in lines


def test_an_absent_file_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(tokens.TokenError, match="can't be read"):
        tokens.read(str(tmp_path / "a.tok"))


def test_a_token_has_no_text_in_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = tokens.Token(path="t", text=license_tokens.build())
    with caplog.at_level(logging.DEBUG):
        logging.getLogger().warning("%s %r", token, token)
    assert license_tokens.SECRET not in caplog.text


def test_a_capture_can_t_read_tokens() -> None:
    assert not host_paths.ALL.is_allowed("/etc/nova/licenses/default.tok")
    assert not host_paths.ALL.is_allowed("/etc/nova/vendor_data.json")


def test_the_token_of_the_project_precedes(tmp_path: pathlib.Path) -> None:
    store = tokens.TokenStore(str(tmp_path))
    for name in ("default", "Q", PROJECT):
        license_tokens.write(tmp_path, name, f"token-of-{name}")

    def find(project: str, *series: str) -> str:
        token = store.find(project, series)
        return token.text if token else ""

    assert find(PROJECT, "Q") == f"token-of-{PROJECT}"
    assert find("other", "Q") == "token-of-Q"
    assert find("other", "C") == "token-of-default"
    assert find("other") == "token-of-default"
    (tmp_path / "default.tok").unlink()
    assert find("other") == ""
    assert store.list_names() == (PROJECT, "Q")


def test_a_project_can_t_name_another_directory(
    tmp_path: pathlib.Path,
) -> None:
    license_tokens.write(tmp_path, "secret", "of-another-service")
    store = tokens.TokenStore(str(tmp_path / "licenses"))
    (tmp_path / "licenses").mkdir()
    for name in ("../secret", f"{tmp_path}/secret", "", "."):
        assert store.find(name, ()) is None
