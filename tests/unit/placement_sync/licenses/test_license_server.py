# SPDX-License-Identifier: Apache-2.0
"""Licence servers are reached by TLS; the tests have a fake on loopback."""

import contextlib
import functools
import pathlib
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator

import pytest

from nova_accel.discovery.capture import RecordedFiles
from nova_accel.doctor import checked_host, host_checks, registry
from nova_accel.host.sysfs import host_reader
from placement_sync.licenses import license_checks, license_server
from tests.support.licenses import license_tokens

LOOPBACK = "127.0.0.1"


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the context of a server whose certificate nothing trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "server.pem")
        key = path.with_suffix(".key")
        subprocess.run(  # noqa: S603 - our own words
            [
                *("/usr/bin/openssl", "req", "-x509", "-newkey", "ec"),
                *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-subj", "/CN=dls", "-keyout", str(key), "-out", str(path)),
            ],
            check=True,
            capture_output=True,
        )
        context.load_cert_chain(path, key)
    return context


@contextlib.contextmanager
def serving(is_tls: bool = True) -> Iterator[int]:
    """Serve one connection on loopback; yield the port."""
    context = tls_context()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            if not is_tls:
                connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                return
            with context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)

    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_server_with_an_unknown_certificate_is_reached() -> None:
    with serving() as port:
        assert license_server.explain_unreachable(LOOPBACK, port) == ""


def test_a_server_without_tls_is_no_licence_server() -> None:
    with serving(is_tls=False) as port:
        reason = license_server.explain_unreachable(LOOPBACK, port)
    assert "answers, but not by TLS" in reason


def test_a_closed_port_is_unreachable() -> None:
    reason = license_server.explain_unreachable(LOOPBACK, free_port())
    assert reason == "can't be reached (Connection refused)"


@pytest.mark.parametrize(("host", "port"), [("a" * 70, 443), ("h", 1 << 20)])
def test_values_of_a_damaged_token_are_no_error(host: str, port: int) -> None:
    assert license_server.explain_unreachable(host, port, 0.1)


def check(tmp_path: pathlib.Path) -> host_checks.CheckResult:
    """Return the result of doctor's check, with a nova.conf."""
    conf = tmp_path / "nova.conf"
    conf.write_text(f"[nova_accel]\nlicense_dir = {tmp_path}/licenses\n")
    host = checked_host.CheckedHost(
        host_reader.HostReader(source=RecordedFiles({})),
        [str(conf)],
    )
    (selected,) = (
        check
        for check in license_checks.AREA.checks
        if check.name == "cloud.license-servers"
    )
    (result,) = registry.run([selected], host)
    return result


def test_doctor_tries_the_servers_of_the_tokens(
    tmp_path: pathlib.Path,
) -> None:
    with serving() as port:
        text = license_tokens.build(LOOPBACK, port)
        license_tokens.write(tmp_path / "licenses", "default", text)
        assert check(tmp_path).level is host_checks.Level.OK
    result = check(tmp_path)
    assert result.level is host_checks.Level.WARN
    (observation,) = result.observations
    assert f"{LOOPBACK}:{port} can't be reached" in observation.text
    assert license_tokens.SECRET not in repr(result)


def test_doctor_does_not_guess_the_servers_of_an_opaque_token(
    tmp_path: pathlib.Path,
) -> None:
    license_tokens.write(tmp_path / "licenses", "Q", license_tokens.SECRET)
    result = check(tmp_path)
    assert result.level is host_checks.Level.UNKNOWN
    assert license_tokens.SECRET not in repr(result)


def test_doctor_warns_of_tokens_that_every_user_reads(
    tmp_path: pathlib.Path,
) -> None:
    path = license_tokens.write(
        tmp_path / "licenses", "Q", license_tokens.SECRET
    )
    path.chmod(0o644)
    result = check(tmp_path)
    assert "chmod o-rwx" in result.observations[0].text
    assert license_tokens.SECRET not in repr(result)
