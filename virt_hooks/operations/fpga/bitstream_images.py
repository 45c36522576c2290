# SPDX-License-Identifier: Apache-2.0
"""Bitstream images, read through Nova's image API.

An image's signature is verified at each download, and only there, if
``[glance] verify_glance_signatures`` is on, or if
``enable_certificate_validation`` is on and
``default_trusted_certificate_ids`` names certificates. Nova verifies it
while the content is downloaded and before any of it can be used; an image
without signature properties is refused. A cached bitstream counts as
verified only if it was verified with the same signature and the same
trusted certificates: otherwise it is downloaded again, or refused while
Glance can't be reached. A server's own trusted certificates are for its
boot image, and not used here. ``[glance] enable_rbd_download`` is for
disks: a bitstream is always downloaded through Glance.
"""

import dataclasses
import errno
import logging
import re
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import nova.conf
from nova import exception
from nova.image import glance

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.config import conf
from nova_accel.host.bitstreams import bitstream_cache, blob_store

LOG = logging.getLogger(__name__)

_MIB = 1 << 20
_SHARE = (
    "correct the id in the flavor (accelerator:fpga_bitstream) or behind"
    " --bitstream, or share the image with the user's project (`openstack"
    " image set --shared`, `openstack image add project`, or --public)"
)
_SIGN = (
    "sign the image's content again (its properties img_signature...), or see"
    " nova.conf [glance] verify_glance_signatures,"
    " default_trusted_certificate_ids"
)
_UNSIGNED = f"its signature is missing or not valid; {_SIGN}"
# What is wrong with an image, and what to do, by the name of the error, as
# not all these libraries are imported. Any other error says nothing about the
# image. No text of the error itself is among them: it may name hosts.
_CAUSES: Mapping[str, str] = {
    "ImageNotFound": f"there is no such image; {_SHARE}",
    "ImageNotAuthorized": f"the user may not read it; {_SHARE}",
    "ImageUnacceptable": "the image can't be used; upload its content",
    "ImageBadRequest": "Glance does not understand the request for it",
    "InvalidSignature": _UNSIGNED,
    "SignatureVerificationError": _UNSIGNED,
    "CertificateValidationFailed": _UNSIGNED,
}
_DAMAGED = (
    "the content in Glance does not have the image's checksum; upload it again"
)
# glanceclient.common.utils, serious_integrity_iter and integrity_iter. The
# same error number without these words is a broken connection, or a client
# without the algorithm.
_CHECKSUM = re.compile("Corrupt image download. (Hash|Checksum) was")
# cursive.signature_utils, get_certificate: the key manager did not answer.
_NO_KEY_MANAGER = "Unable to retrieve certificate"
_REACH = (
    "see that Glance runs, and that nova.conf [glance] and the service"
    " catalog say where"
)
_LEAST_CLIENT_ERROR, _LEAST_SERVER_ERROR = 400, 500
# Client errors that say nothing about the image (RFC 9110, 6585, 8470): a
# proxy wants a login, and the server was too slow, too early or too busy.
_TRANSIENT = frozenset({407, 408, 425, 429})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ImageLookup:
    """Facts of an image; online if they were just read from Glance."""

    facts: bitstreams.ImageFacts
    requirement: bitstreams.ImageRequirement
    is_online: bool


class BitstreamImages:
    """Bitstreams of Glance images, cached as files on this host."""

    def __init__(
        self, settings: conf.BitstreamSettings, api: Any = None
    ) -> None:
        """Open the cache.

        :param api: the image API to use instead of Nova's.
        """
        self._settings = settings
        self._api = glance.API() if api is None else api
        self._cache = bitstream_cache.BitstreamCache(
            settings.cache_dir, settings.limit
        )

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """Return images' bitstreams, downloaded unless they are cached.

        Each image is read from Glance first, also if it is cached: a
        deleted, deactivated or forbidden image is refused. The cache alone
        is used only if Glance can't be reached. All images are checked
        before the first one is downloaded.

        :param context: of the request: its user must see the images.
        :param keep: images that other servers need here; none of these is
            evicted for a new one.
        :return: by the text that named each image.
        :raises BitstreamError: one may not be loaded, or can't be fetched.
        """
        ids = {image: _id(image) for image in images}
        lookups = {
            image: self._read_image(context, image)
            for image in sorted(set(ids.values()))
        }
        digests = self._cache.digests(map(_normalize, keep)) | {
            lookup.requirement.sha512 for lookup in lookups.values()
        }
        fetched = {
            image: self._fetch(context, lookup, digests)
            for image, lookup in lookups.items()
        }
        return {image: fetched[image_id] for image, image_id in ids.items()}

    def remove_partial_files(self) -> None:
        """Remove what interrupted downloads of a killed service left."""
        self._cache.remove_partial_files()

    def read_cached(
        self, images: Iterable[str]
    ) -> Mapping[str, model.Bitstream]:
        """Return the bitstreams that are cached and still allowed.

        Glance is not read; other images are missing in the mapping.
        """
        cached = {}
        for image in images:
            try:
                facts = self._read_recorded(_id(image))
            except errors.BitstreamError as error:
                LOG.debug("not loading a cached bitstream: %s", error)
                continue
            bitstream = self._cache.get(facts.id) if facts else None
            if bitstream is not None:
                cached[image] = bitstream
        return cached

    def _read_image(self, context: Any, image: str) -> _ImageLookup:
        """Return the checked facts of an image in Glance."""
        try:
            answer = self._api.get(context, image, show_deleted=False)
        except Exception as error:
            if _find_cause(error):
                raise _bitstream_error(image, error) from error
            return self._without_glance(image, error)
        return self._checked(_facts(image, answer), is_online=True)

    def _without_glance(self, image: str, error: Exception) -> _ImageLookup:
        """Return the recorded facts, since Glance can't be reached."""
        facts = self._read_recorded(image)
        if facts is None or self._cache.get(image) is None:
            raise errors.BitstreamError(
                image,
                f"Glance can't be reached ({_describe(error)}), and it is"
                f" not cached on this host; {_REACH}",
                is_local=True,
            ) from error
        LOG.warning(
            "loading cached bitstream %s: Glance can't be reached: %s",
            image,
            _describe(error),
        )
        return self._checked(facts, is_online=False)

    def _checked(
        self, facts: bitstreams.ImageFacts, *, is_online: bool
    ) -> _ImageLookup:
        self._check_allowed(facts)
        return _ImageLookup(
            facts=facts,
            requirement=bitstreams.parse_image(facts, self._settings.limit),
            is_online=is_online,
        )

    def _check_allowed(self, facts: bitstreams.ImageFacts) -> None:
        bitstreams.check_allowed(
            facts, self._settings.images, self._settings.owners
        )

    def _read_recorded(self, image: str) -> bitstreams.ImageFacts | None:
        """Return the recorded facts of an image that may be loaded now.

        :raises BitstreamError: it may not be loaded, or isn't verified.
        """
        facts = self._cache.facts(image)
        if facts is None:
            return None
        self._check_allowed(facts)
        needed = _signature(facts.properties)
        if needed and needed != facts.signature:
            raise errors.BitstreamError(
                image,
                "the cached bitstream was not verified as nova.conf"
                f" [glance] requires now; {_REACH}: then it is downloaded"
                " again",
                is_local=True,
            )
        return facts

    def _fetch(
        self, context: Any, lookup: _ImageLookup, keep: Collection[str]
    ) -> model.Bitstream:
        image = lookup.facts.id
        seconds: list[float] = []

        def fill(file: blob_store.PartialFile) -> None:
            if not lookup.is_online:
                raise errors.BitstreamError(
                    image,
                    "it was just removed from the cache, and Glance can't be"
                    f" reached; {_REACH}",
                    is_local=True,
                )
            start = time.monotonic()
            self._download(context, image, file)
            seconds.append(time.monotonic() - start)

        bitstream = self._cache.fetch(
            lookup.facts, lookup.requirement, fill, keep
        )
        if seconds:
            LOG.info(
                "bitstream %s (function %s, %.1f MiB) fetched in %.1f s",
                image,
                bitstream.function,
                bitstream.size / _MIB,
                seconds[0],
            )
        return bitstream

    def _download(
        self, context: Any, image: str, file: blob_store.PartialFile
    ) -> None:
        """Write an image's content; Nova verifies it if configured.

        The file is passed as ``data``. With a path Nova would write
        content of any size; with neither it would return an iterator that
        it has already read to the end for the verification.
        """
        try:
            self._api.download(context, image, data=file)
        except errors.BitstreamError:
            raise
        except Exception as error:
            # Old clients end a cut transfer like a complete one.
            raise _bitstream_error(
                image, error, is_cut=not file.is_complete
            ) from error


def _id(image: str) -> str:
    """Return an image's id as Glance writes it.

    :raises BitstreamError: it is no UUID.
    """
    image_id = _normalize(image)
    try:
        if str(uuid.UUID(image_id)) == image_id:
            return image_id
    except ValueError:
        pass
    raise errors.BitstreamError(
        image,
        "this is no id of a Glance image; write its UUID, as `openstack"
        " image list` shows it, into the flavor's"
        " accelerator:fpga_bitstream, or behind --bitstream",
    )


def _normalize(image: str) -> str:
    return image.strip().lower()


def _facts(image: str, answer: Mapping[str, Any]) -> bitstreams.ImageFacts:
    """Return the facts of an image in an answer of Nova's image API.

    The owner and Glance's digest are read from fields that only Glance can
    write, not from a user's property of the same name.
    """
    properties = {
        str(name): value
        for name, value in (answer.get("properties") or {}).items()
        if isinstance(value, str)
    }
    return bitstreams.ImageFacts(
        id=image,
        owner=str(answer.get("owner") or ""),
        size=int(answer.get("size") or 0),
        status=str(answer.get("status") or ""),
        hash_algo=str(answer.get("os_hash_algo") or ""),
        hash_value=str(answer.get("os_hash_value") or ""),
        properties=properties,
        signature=_signature(properties),
    )


def _signature(properties: Mapping[str, str]) -> str:
    """Return a text of what Nova verifies content with, empty for nothing.

    Same conditions as ``GlanceImageServiceV2._get_verifier`` of Nova 31
    to 34.
    """
    options = nova.conf.CONF.glance
    trusted = (
        sorted(options.default_trusted_certificate_ids)
        if options.enable_certificate_validation
        else []
    )
    if not trusted and not options.verify_glance_signatures:
        return ""
    parts = [properties.get(name, "") for name in bitstreams.SIGNATURE]
    return " ".join(["verified", *parts, *trusted])


def _find_cause(error: Exception) -> str:
    """Return what is wrong with the image, empty if that is not the cause.

    Clients below Nova raise their own errors, with an HTTP status if a
    service answered. Those of the connection are OSErrors, as is
    glanceclient's error for a wrong checksum.
    """
    text = str(error)
    if isinstance(error, OSError):
        is_damaged = error.errno == errno.EPIPE and _CHECKSUM.search(text)
        return _DAMAGED if is_damaged else ""
    if _NO_KEY_MANAGER in text:
        return ""
    names = [each.__name__ for each in type(error).__mro__]
    cause = next((_CAUSES[name] for name in names if name in _CAUSES), "")
    status = getattr(error, "http_status", None) or getattr(
        error, "code", None
    )
    if (
        cause
        or isinstance(error, exception.NovaException)
        or not isinstance(status, int)
        or status in _TRANSIENT
        or not _LEAST_CLIENT_ERROR <= status < _LEAST_SERVER_ERROR
    ):
        return cause
    return f"Glance refuses it with HTTP {status}"


def _bitstream_error(
    image: str, error: Exception, is_cut: bool = False
) -> errors.BitstreamError:
    """Return the error for an error of Nova's image API.

    :param is_cut: the content has ended too early.
    """
    cause = "" if is_cut and isinstance(error, OSError) else _find_cause(error)
    return errors.BitstreamError(
        image,
        f"can't read it from Glance: {_describe(error)}; {cause or _REACH}",
        is_local=not cause,
        public=f"can't read it from Glance: {cause}",
    )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")
