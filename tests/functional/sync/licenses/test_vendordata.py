# SPDX-License-Identifier: Apache-2.0
"""Only servers whose allocations have an NVIDIA vGPU get a token."""

import io
import json
import logging
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from placement_sync.client import cloud_client, rest
from placement_sync.daemon import json_application
from placement_sync.licenses import tokens, vendordata, wsgi
from tests.functional.sync.support import nova_standin, servers
from tests.support.licenses import license_tokens

NVIDIA = "CUSTOM_ACCELERATOR_DEVICE_10DE_1EB8"
AMD = "CUSTOM_ACCELERATOR_DEVICE_1002_74A1"
PROJECT = "0f4c6a0c2f0b4b0e9d3b6a2f5f0c1d2e"
SERVICE = {
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_ROLES": "reader,service",
}


def add_server(
    placement: servers.Server, trait: str, resource_class: str = "VGPU"
) -> str:
    """Create a card and a server that holds a unit of it."""
    card, server = str(uuid.uuid4()), str(uuid.uuid4())
    call = placement.call
    call("POST", "/resource_providers", {"name": card, "uuid": card})
    call("PUT", f"/traits/{trait}")
    call(
        "PUT",
        f"/resource_providers/{card}/traits",
        {"resource_provider_generation": 0, "traits": [trait]},
    )
    call(
        "PUT",
        f"/resource_providers/{card}/inventories",
        {
            "resource_provider_generation": 1,
            "inventories": {resource_class: {"total": 4}},
        },
    )
    call(
        "PUT",
        f"/allocations/{server}",
        {
            "allocations": {card: {"resources": {resource_class: 1}}},
            "project_id": PROJECT,
            "user_id": PROJECT,
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        },
    )
    return server


@pytest.fixture
def store(tmp_path: pathlib.Path) -> tokens.TokenStore:
    directory = tmp_path / "licenses"
    license_tokens.write(directory, "default", license_tokens.build())
    return tokens.TokenStore(str(directory))


@pytest.fixture
def application(
    placement: servers.Server, store: tokens.TokenStore
) -> wsgi.VendordataApplication:
    client = cloud_client.from_endpoint(placement.url)
    return wsgi.VendordataApplication(vendordata.LicenseService(store, client))


def post(
    application: json_application.Application | wsgi.VendordataApplication,
    server: str,
    project: str = PROJECT,
    content: bytes | None = None,
    headers: Mapping[str, str] = SERVICE,
) -> tuple[str, Any]:
    """Return status and decoded body of a request as Nova sends it."""
    request = {"instance-id": server, "project-id": project, "hostname": "h"}
    text = json.dumps(request).encode() if content is None else content
    statuses: list[str] = []
    body = application(
        {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
            "CONTENT_LENGTH": str(len(text)),
            "wsgi.input": io.BytesIO(text),
            **headers,
        },
        lambda status, _, *__: statuses.append(status),
    )
    (status,) = statuses
    text = b"".join(body)
    is_json = text[:1] in (b"{", b'"')
    return status, json.loads(text) if is_json else text


def test_a_server_with_an_nvidia_vgpu_gets_a_text_with_the_token(
    application: wsgi.VendordataApplication, placement: servers.Server
) -> None:
    status, body = post(application, add_server(placement, NVIDIA))
    assert status == "200 OK"
    assert isinstance(body, str) and body.startswith("#!/bin/sh\n")
    assert license_tokens.SECRET in body


@pytest.mark.parametrize(
    ("trait", "resource_class"), [(AMD, "VGPU"), (NVIDIA, "PGPU")]
)
def test_other_servers_get_an_empty_text(
    application: wsgi.VendordataApplication,
    placement: servers.Server,
    trait: str,
    resource_class: str,
) -> None:
    server = add_server(placement, trait, resource_class)
    assert post(application, server) == ("200 OK", "")


def test_a_server_without_allocations_gets_an_empty_text(
    application: wsgi.VendordataApplication,
) -> None:
    assert post(application, str(uuid.uuid4())) == ("200 OK", "")


def test_a_server_of_another_project_is_refused(
    application: wsgi.VendordataApplication, placement: servers.Server
) -> None:
    server = add_server(placement, NVIDIA)
    status, body = post(application, server, "another")
    assert (status, body) == ("403 Forbidden", {})


@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_X_IDENTITY_STATUS": "Confirmed", "HTTP_X_ROLES": "member"},
        {"HTTP_X_IDENTITY_STATUS": "Invalid", "HTTP_X_ROLES": "service"},
        {"HTTP_X_ROLES": "service"},
    ],
)
def test_a_caller_that_is_no_service_is_refused(
    application: wsgi.VendordataApplication,
    placement: servers.Server,
    headers: dict[str, str],
) -> None:
    server = add_server(placement, NVIDIA)
    assert post(application, server, headers=headers) == ("403 Forbidden", {})


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b"{", b"[" * 9999),
        b'{"instance-id": 1, "project-id": "p"}',
    ],
)
def test_a_malformed_request_is_refused(
    application: wsgi.VendordataApplication, content: bytes
) -> None:
    status, _ = post(application, "", content=content)
    assert status == "400 Bad Request"


def test_an_error_is_logged_without_the_token(
    placement: servers.Server,
    store: tokens.TokenStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server = add_server(placement, NVIDIA)
    token = pathlib.Path(store.directory, "default.tok")
    client = cloud_client.from_endpoint(placement.url)
    application = wsgi.VendordataApplication(
        vendordata.LicenseService(store, client)
    )
    assert post(application, server)[0] == "200 OK"
    token.chmod(0o644)
    assert post(application, server)[0] == "503 Service Unavailable"
    assert f"Server {server} gets licence token {token}" in caplog.text
    assert f"No licence vendordata for server {server}" in caplog.text
    away = cloud_client.from_endpoint("http://127.0.0.1:1")
    application = wsgi.VendordataApplication(
        vendordata.LicenseService(store, away)
    )
    assert post(application, server)[0] == "503 Service Unavailable"
    assert license_tokens.SECRET not in caplog.text


def test_the_token_of_the_flavor_s_series_is_used(
    placement: servers.Server, store: tokens.TokenStore
) -> None:
    server = add_server(placement, NVIDIA)
    directory = pathlib.Path(store.directory)
    license_tokens.write(directory, "C", license_tokens.build(mark="-of-C"))
    placement_client = cloud_client.from_endpoint(placement.url)
    with nova_standin.serve() as nova:
        nova.add_server(
            server,
            "node1",
            **{
                "resources_A:VGPU": "1",
                "trait_A:CUSTOM_VGPU_NVIDIA_A40_8C": "required",
            },
        )
        compute = cloud_client.from_endpoint(nova.url, service=rest.COMPUTE)
        service = vendordata.LicenseService(store, placement_client, compute)
        token = service.find_token(server, PROJECT)
    assert token is not None and token.text.endswith("-of-C")
    no_compute = vendordata.LicenseService(store, placement_client)
    status, _ = post(wsgi.VendordataApplication(no_compute), server)
    assert status == "503 Service Unavailable"


def test_a_server_named_like_another_one_does_not_choose_its_token(
    placement: servers.Server, store: tokens.TokenStore
) -> None:
    server, other = add_server(placement, NVIDIA), str(uuid.uuid4())
    license_tokens.write(
        pathlib.Path(store.directory), "C", license_tokens.build(mark="-of-C")
    )
    with nova_standin.serve() as nova:
        nova.add_server(
            other,
            "node1",
            server,
            **{
                "resources_A:VGPU": "1",
                "trait_A:CUSTOM_VGPU_NVIDIA_A40_8C": "required",
            },
        )
        token = vendordata.LicenseService(
            store,
            cloud_client.from_endpoint(placement.url),
            cloud_client.from_endpoint(nova.url, service=rest.COMPUTE),
        ).find_token(server, PROJECT)
    assert token is not None and token.path.endswith("default.tok")


def write_conf(tmp_path: pathlib.Path, url: str, directory: str) -> str:
    path = tmp_path / "nova.conf"
    path.write_text(
        f"[nova_accel]\nlicense_dir = {directory}\n"
        f"[placement]\nauth_type = admin_token\nendpoint = {url}\n"
        "token = admin\n"
        "[keystone_authtoken]\nwww_authenticate_uri = http://127.0.0.1:1\n"
        "auth_type = admin_token\nendpoint = http://127.0.0.1:1\n"
        "token = admin\nservice_token_roles_required = true\n"
    )
    return str(path)


def test_a_request_without_a_token_of_keystone_is_refused(
    placement: servers.Server,
    store: tokens.TokenStore,
    tmp_path: pathlib.Path,
) -> None:
    """Headers of the client itself count for nothing."""
    conf = write_conf(tmp_path, placement.url, store.directory)
    protected = wsgi.build_application([conf])
    status, body = post(protected, add_server(placement, NVIDIA))
    assert status == "401 Unauthorized"
    assert license_tokens.SECRET not in repr(body)
