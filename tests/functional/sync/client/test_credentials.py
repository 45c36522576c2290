# SPDX-License-Identifier: Apache-2.0
"""Credentials from nova.conf and clouds.yaml, and expired tokens."""

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import loading

from nova_accel import errors
from nova_accel.discovery import nova_conf
from placement_sync.client import (
    cloud_client,
    http_errors,
    resource_providers,
    rest,
    service_client,
)
from placement_sync.fleet import projects
from tests.functional.sync.support import identity, servers

PASSWORD_OPTIONS = f"""
auth_type = password
auth_url = {{url}}/v3
username = {identity.USER}
password = {identity.PASSWORD}
project_name = {identity.PROJECT}
user_domain_name = Default
project_domain_name = Default
"""
CLOUDS = f"""
clouds:
  here:
    region_name: {identity.REGION}
    auth:
      auth_url: {{url}}/v3
      username: {identity.USER}
      password: {identity.PASSWORD}
      project_name: {identity.PROJECT}
      user_domain_name: Default
      project_domain_name: Default
"""
PATH = "/resource_providers"
Write = Callable[[str], Any]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes and parses a nova.conf."""

    def parse(text: str) -> Any:
        path = tmp_path / "nova.conf"
        path.write_text(text)
        return nova_conf.parse_files([str(path)])[0]

    return parse


@pytest.fixture
def keystone(placement: servers.Server) -> Iterator[identity.Identity]:
    with identity.Identity(placement.url).running() as running:
        yield running


@pytest.fixture
def clouds(
    keystone: identity.Identity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    path = tmp_path / "clouds.yaml"
    path.write_text(CLOUDS.format(url=keystone.url))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
    return path


def by_password(keystone: identity.Identity, options: str = "") -> str:
    return (
        "[placement]"
        + PASSWORD_OPTIONS.format(url=keystone.url)
        + options
        + "\n"
    )


def test_password(keystone: identity.Identity, write: Write) -> None:
    client = cloud_client.from_conf(write(by_password(keystone)))
    assert client.get(PATH).body == {"resource_providers": []}
    assert client.put("/traits/CUSTOM_A").status == 201
    assert keystone.tokens == ["secret-token-1"]


def test_projects_of_a_keystone_at_an_address_without_version(
    keystone: identity.Identity, write: Write
) -> None:
    keystone.names["a"] = "rendering"
    client = cloud_client.from_conf(
        write(by_password(keystone)), rest.IDENTITY
    )
    named = projects.read_names(client, ["a", "deleted", "../x", ""])
    assert named == {"a": "rendering"}


def test_a_section_of_its_own(
    keystone: identity.Identity, write: Write
) -> None:
    text = by_password(keystone).replace("[placement]", "[login]")
    client = cloud_client.from_conf(
        write(f"{text}[placement]\nauth_section = login\n")
    )
    assert client.get(PATH).status == 200


def test_options_that_nova_registered(
    keystone: identity.Identity, tmp_path: Path
) -> None:
    """As in nova-compute: its own configuration, already parsed."""
    import nova.conf

    path = tmp_path / "nova.conf"
    path.write_text(by_password(keystone))
    nova_conf = nova.conf.CONF
    nova_conf([], default_config_files=[str(path)], default_config_dirs=[])
    for _ in range(2):
        assert cloud_client.from_conf(nova_conf).get(PATH).status == 200
    nova_conf.clear()
    # Some are required, and the next test's nova.conf may lack them.
    nova_conf.unregister_opts(
        loading.get_auth_plugin_conf_options("password"), group="placement"
    )


def test_options_registered_twice(
    keystone: identity.Identity, write: Write
) -> None:
    read = write(by_password(keystone))
    for client in (cloud_client.from_conf(read), cloud_client.from_conf(read)):
        assert client.get(PATH).status == 200
    cloud_client.from_conf(read, rest.COMPUTE)


@pytest.mark.parametrize("kind", ["admin_token", "none"])
def test_without_keystone(
    placement: servers.Server, write: Write, kind: str
) -> None:
    """With "none", the token is a fixed text, which has no role."""
    client = cloud_client.from_conf(
        write(f"""
[placement]
auth_type = {kind}
endpoint = {placement.url}
token = admin
endpoint_override = {placement.url}
""")
    )
    if kind == "admin_token":
        assert client.put("/traits/CUSTOM_A").status == 201
        return
    with pytest.raises(errors.ServiceError, match="role") as caught:
        client.put("/traits/CUSTOM_A")
    assert caught.value.status == 403


def test_an_expired_token_is_replaced(
    keystone: identity.Identity, write: Write
) -> None:
    """Before reads and before writes, without an error."""
    client = cloud_client.from_conf(write(by_password(keystone)))
    client.get(PATH)
    request_functions: list[Callable[[], service_client.Response]] = [
        lambda: client.get(PATH),
        lambda: client.post(PATH, {"name": "a"}),
        lambda: client.put("/traits/CUSTOM_A"),
    ]
    for number, send in enumerate(request_functions, 2):
        keystone.expire()
        assert send().status in (200, 201)
        assert len(keystone.tokens) == number
        assert keystone.refused == number - 1
    assert (client.reads, client.writes) == (2, 2)


def test_tokens_that_are_never_valid(
    keystone: identity.Identity, write: Write
) -> None:
    """Placement uses another Keystone: the request is repeated once."""
    keystone.answers["/placement" + PATH] = 401
    client = cloud_client.from_conf(write(by_password(keystone)))
    with pytest.raises(
        errors.ServiceError, match="token is refused"
    ) as caught:
        client.get(PATH)
    assert caught.value.status == 401
    assert len(keystone.tokens) == 2


def test_keystone_fails_and_comes_back(
    keystone: identity.Identity, write: Write
) -> None:
    client = cloud_client.from_conf(write(by_password(keystone)))
    client.get(PATH)
    keystone.expire()
    keystone.answers["/v3/auth/tokens"] = 503
    with pytest.raises(errors.ServiceError, match="Keystone") as caught:
        client.get(PATH)
    assert caught.value.is_transient
    keystone.answers.clear()
    assert client.get(PATH).status == 200


def test_a_wrong_password(keystone: identity.Identity, write: Write) -> None:
    text = by_password(keystone).replace(identity.PASSWORD, "wrong one")
    client = cloud_client.from_conf(write(text))
    with pytest.raises(errors.ServiceError, match="username") as caught:
        client.get(PATH)
    assert caught.value.status == 401
    assert not caught.value.is_transient
    assert "wrong one" not in str(caught.value)


def test_no_such_region(keystone: identity.Identity, write: Write) -> None:
    client = cloud_client.from_conf(
        write(by_password(keystone, "region_name = south"))
    )
    with pytest.raises(errors.ServiceError, match="region_name") as caught:
        client.get(PATH)
    assert not caught.value.is_transient


def test_no_keystone(write: Write) -> None:
    text = "[placement]" + PASSWORD_OPTIONS.format(url="http://127.0.0.1:1")
    with pytest.raises(errors.ServiceError) as caught:
        cloud_client.from_conf(write(text)).get(PATH)
    assert caught.value.is_transient


def test_certificates(
    placement: servers.Server, tmp_path: Path, write: Write
) -> None:
    """``cafile`` and ``insecure`` apply to Keystone and Placement."""
    path = identity.certify(tmp_path / "certificate.pem")
    with identity.Identity(placement.url, path).running() as keystone:
        client = cloud_client.from_conf(write(by_password(keystone)))
        with pytest.raises(errors.ServiceError, match="cafile") as caught:
            client.get(PATH)
        assert not caught.value.is_transient
        for option in (f"cafile = {path}", "insecure = true"):
            client = cloud_client.from_conf(
                write(by_password(keystone, option))
            )
            assert client.get(PATH).status == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "auth_type"),
        ("auth_type = magic", "magic"),
        ("auth_type = password", "auth_url"),
        ("auth_type = password\nauth_url = x\ntimeout = soon", "timeout"),
    ],
)
def test_settings_that_can_not_be_used(
    write: Write, options: str, message: str
) -> None:
    with pytest.raises(errors.ConfigurationError, match=message) as caught:
        cloud_client.from_conf(write(f"[placement]\n{options}\n"))
    assert "nova.conf [placement]" in str(caught.value)


@pytest.mark.parametrize(
    "auth_type, option, message",
    [
        ("none", "timeout = -1", "timeout"),
        ("none", "certfile = /none/such", "certfile"),
        ("none", f"endpoint_override = http://{'a' * 64}", "URL"),
        ("password", "auth_url = http://[::1", "URL"),
    ],
)
def test_settings_that_the_first_request_refuses(
    write: Write, auth_type: str, option: str, message: str
) -> None:
    """The first request refuses them, and is not retried."""
    text = f"auth_type = {auth_type}\nendpoint = https://127.0.0.1:9\n"
    client = cloud_client.from_conf(write(f"[placement]\n{text}{option}\n"))
    with pytest.raises(errors.ServiceError, match=message) as caught:
        client.get(PATH)
    assert not caught.value.is_transient


def test_a_group_that_is_missing(write: Write) -> None:
    with pytest.raises(errors.ConfigurationError, match="password"):
        cloud_client.from_conf(write("[DEFAULT]\n"))


def test_an_operators_timeout(write: Write) -> None:
    read = write(
        "[placement]\nauth_type = admin_token\nendpoint = http://h\n"
        "token = t\ntimeout = 3\n"
    )
    assert cloud_client.from_conf(read).timeout == (3, 3)
    read = write(
        "[placement]\nauth_type = admin_token\nendpoint = http://h\ntoken = t"
    )
    assert cloud_client.from_conf(read).timeout == (
        rest.CONNECT_SECONDS,
        rest.ANSWER_SECONDS,
    )


@pytest.mark.usefixtures("clouds")
def test_a_cloud(
    keystone: identity.Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, region in (("here", ""), ("here", identity.REGION)):
        assert cloud_client.from_cloud(name, region).get(PATH).status == 200
    monkeypatch.setenv("OS_CLOUD", "here")
    client = cloud_client.from_cloud()
    assert client.get(PATH).status == 200
    keystone.expire()
    assert client.put("/traits/CUSTOM_A").status == 201


@pytest.mark.usefixtures("clouds")
def test_no_such_cloud() -> None:
    with pytest.raises(errors.ConfigurationError, match="OS_CLOUD") as caught:
        cloud_client.from_cloud("there")
    assert str(caught.value).startswith("clouds.yaml")


def test_no_clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("OS_CLOUD", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.ConfigurationError, match="OS_CLOUD"):
        cloud_client.from_cloud()


def test_nova_by_placements_credentials(
    keystone: identity.Identity, write: Write
) -> None:
    """This catalog has no Nova: the error names the option."""
    read = write(by_password(keystone))
    with pytest.raises(errors.ServiceError, match="endpoint_override"):
        cloud_client.from_conf(read, rest.COMPUTE).get("/os-hypervisors")


def test_nova_by_its_own_endpoint(
    keystone: identity.Identity, write: Write
) -> None:
    """The request's path is appended to the option's path."""
    keystone.answers["/compute/v2.1/os-hypervisors"] = 200
    read = write(
        by_password(keystone)
        + f"[nova]\nendpoint_override = {keystone.url}/compute/v2.1\n"
    )
    assert (
        cloud_client.from_conf(read, rest.COMPUTE).get("/os-hypervisors").body
        == {}
    )
    keystone.answers["/compute/v2.1/os-hypervisors"] = 403
    with pytest.raises(errors.ServiceError, match="role"):
        cloud_client.from_conf(read, rest.COMPUTE).get("/os-hypervisors")


@pytest.mark.usefixtures("clouds")
def test_nova_of_a_cloud() -> None:
    with pytest.raises(errors.ServiceError, match="endpoint_override"):
        cloud_client.from_cloud("here", service=rest.COMPUTE).get(
            "/os-hypervisors"
        )


def test_no_secret_in_the_log(
    keystone: identity.Identity,
    write: Write,
    clouds: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for logger in ("keystoneauth", "openstack", "urllib3"):
        caplog.set_level(logging.DEBUG, logger)
    read = write(by_password(keystone))
    for client in (
        cloud_client.from_conf(read),
        cloud_client.from_cloud("here"),
    ):
        placement = resource_providers.PlacementClient(client)
        placement.fetch(str(uuid.UUID(int=1)))
        keystone.expire()
        placement.fetch(str(uuid.UUID(int=1)))
        keystone.answers["/v3/auth/tokens"] = 401
        keystone.expire()
        with pytest.raises(errors.ServiceError) as caught:
            placement.fetch(str(uuid.UUID(int=1)))
        keystone.answers.clear()
        assert identity.PASSWORD not in repr(caught.value)
    assert len(keystone.tokens) == 4
    assert "GET" in caplog.text
    for secret in (identity.PASSWORD, *keystone.tokens):
        assert secret not in caplog.text


@pytest.mark.parametrize("token", ["secret\ntoken", " secret", "secret\u20ac"])
def test_a_token_that_can_not_be_sent_is_not_printed(token: str) -> None:
    client = cloud_client.from_endpoint("http://127.0.0.1:9", token)
    with pytest.raises(errors.ServiceError, match="token") as caught:
        client.get(PATH)
    assert "secret" not in repr(caught.value)
    assert caught.value.is_lasting


def test_a_password_with_any_character_is_not_printed() -> None:
    assert (
        http_errors.shorten("at http://me:pa@ss@host/x") == "at http://host/x"
    )


# -- identity of the user ---------------------------------------------------


def test_identity_of_a_cloud(
    clouds: Path, keystone: identity.Identity
) -> None:
    user = cloud_client.read_identity(cloud_client.from_cloud("here"))
    assert user is not None
    assert (user.user, user.project, user.roles) == ("u", "p", ("admin",))
    assert user.token == keystone.tokens[-1]
    types = [service["type"] for service in user.catalog]
    assert types == ["placement", "identity"]
    assert user.token not in repr(user)


def test_no_identity_without_keystone(placement: servers.Server) -> None:
    assert (
        cloud_client.read_identity(cloud_client.from_endpoint(placement.url))
        is None
    )


def test_no_identity_while_keystone_fails(
    clouds: Path, keystone: identity.Identity
) -> None:
    keystone.answers["/v3/auth/tokens"] = 503
    with pytest.raises(errors.ServiceError) as caught:
        cloud_client.read_identity(cloud_client.from_cloud("here"))
    assert "issues no token" in str(caught.value)
    assert identity.PASSWORD not in str(caught.value)
