# SPDX-License-Identifier: Apache-2.0
"""Verification of image signatures by Nova, if it is switched on."""

import base64
import datetime
import logging
from pathlib import Path
from typing import Any

import pytest
from castellan.common.objects import x_509
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from nova_accel import errors
from tests.functional.images import glances
from tests.functional.images.image_requests import (
    CONTENT,
    Make,
    Set,
    add,
    list_cached,
    user,
)
from tests.support.fpga import bitstream_files

CERTIFICATE = "cccccccc-0000-4000-8000-00000000000c"


class Keys:
    """A key manager with the one certificate of these tests."""

    certificate: x509.Certificate

    def __init__(self, configuration: Any) -> None:
        """Accept castellan's argument."""

    def get(self, context: Any, managed_object_id: str) -> Any:
        assert managed_object_id == CERTIFICATE
        return x_509.X509(
            self.certificate.public_bytes(serialization.Encoding.DER)
        )


def certify(key: rsa.RSAPrivateKey) -> x509.Certificate:
    """Return a certificate of a key, signed with the same key."""
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "us")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )


@pytest.fixture(scope="module")
def signature() -> dict[str, str]:
    """Return the properties of a signed image of CONTENT."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    Keys.certificate = certify(key)
    signed = key.sign(
        CONTENT,
        padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH),
        hashes.SHA256(),
    )
    return {
        "img_signature": base64.b64encode(signed).decode(),
        "img_signature_hash_method": "SHA-256",
        "img_signature_key_type": "RSA-PSS",
        "img_signature_certificate_uuid": CERTIFICATE,
    }


class TestSignature:
    @pytest.fixture(autouse=True)
    def verifying(self, standin: glances.StandIn, option: Set) -> None:
        option("key_manager", backend=f"{__name__}.Keys")
        option("glance", verify_glance_signatures=True)

    def test_nova_verifies_it(
        self,
        standin: glances.StandIn,
        make: Make,
        signature: dict[str, str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO)
        image = add(standin, **signature)
        bitstreams = make().fetch(user(), [image])
        assert Path(bitstreams[image].path).read_bytes() == CONTENT
        assert "Image signature verification succeeded" in caplog.text
        assert make().fetch(user(), [image]) == bitstreams
        assert make().read_cached([image]) == bitstreams
        assert standin.downloads() == 1

    def test_another_content_under_a_signature(
        self,
        standin: glances.StandIn,
        make: Make,
        signature: dict[str, str],
        tmp_path: Path,
    ) -> None:
        content = bitstream_files.gbs(payload=b"something else")
        image = add(standin, content, **signature)
        with pytest.raises(
            errors.BitstreamError, match="verify_glance_signatures"
        ):
            make().fetch(user(), [image])
        assert not list_cached(tmp_path)

    def test_an_image_without_signature(
        self, standin: glances.StandIn, make: Make, tmp_path: Path
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="img_signature"):
            make().fetch(user(), [add(standin)])
        assert standin.downloads() == 0

    def test_an_unverified_image_is_downloaded_again(
        self,
        standin: glances.StandIn,
        make: Make,
        option: Set,
        signature: dict[str, str],
    ) -> None:
        option("glance", verify_glance_signatures=False)
        image = add(standin, **signature)
        bitstreams = make().fetch(user(), [image])
        option("glance", verify_glance_signatures=True)
        assert make().read_cached([image]) == {}
        option("glance", api_servers=["http://127.0.0.1:1"])
        with pytest.raises(errors.BitstreamError, match="not verified"):
            make().fetch(user(), [image])
        option("glance", api_servers=[standin.url])
        assert make().fetch(user(), [image]) == bitstreams
        assert standin.downloads() == 2
        assert make().read_cached([image]) == bitstreams

    def test_an_untrusted_certificate(
        self,
        standin: glances.StandIn,
        make: Make,
        option: Set,
        signature: dict[str, str],
        tmp_path: Path,
    ) -> None:
        option(
            "glance",
            verify_glance_signatures=False,
            enable_certificate_validation=True,
            default_trusted_certificate_ids=[],
        )
        image = add(standin, **signature)
        bitstreams = make().fetch(user(), [image])  # nothing is switched on
        option("glance", default_trusted_certificate_ids=[CERTIFICATE])
        with pytest.raises(
            errors.BitstreamError, match="CertificateValidationFailed"
        ):
            make().fetch(user(), [image])
        assert bitstreams
