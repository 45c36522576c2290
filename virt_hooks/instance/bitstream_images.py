# SPDX-License-Identifier: Apache-2.0
"""Bitstream images, read through Nova's image API.

When an image's signature is verified: at each download, and only there, if
``[glance] verify_glance_signatures`` is on, or if
``enable_certificate_validation`` is on and
``default_trusted_certificate_ids`` names certificates. Nova does it itself
then, while the content comes and before any of it can be used; an image
without signature properties is refused. What is kept on this host counts
as verified only if it was, with the same signature and the same trusted
certificates: otherwise it comes anew, or is refused while Glance can't be
reached. A server's own trusted certificates are for its boot image, and
not asked here. ``[glance] enable_rbd_download`` is for disks: a bitstream
always comes through Glance.
"""

import dataclasses
import logging
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import nova.conf
from nova import exception
from nova.image import glance

from nova_accel import errors, model
from nova_accel.config import conf
from nova_accel.fpga import bitstreams
from nova_accel.host.bitstreams import bitstream_cache, partial_file

LOG = logging.getLogger(__name__)

_MIB = 1 << 20
# What answers are no answers about the image.
_NO_ANSWER = (
    exception.GlanceConnectionFailed,
    exception.KeystoneConnectionFailed,
)
_SHARE = (
    "correct the id that the flavor (accelerator:fpga_bitstream), or whoever"
    " attaches it, has named, or share the image with the project that asks"
    " (`openstack image set --shared`, `openstack"
    " image add project`, or --public)"
)
_SIGN = (
    "sign the image's content anew (its properties img_signature...), or see"
    " nova.conf [glance] verify_glance_signatures,"
    " default_trusted_certificate_ids"
)
_UPLOAD = "upload the content again if this goes on"
# By the name of the error: not all of these libraries are ours to import.
_MENDS: Mapping[str, str] = {
    "ImageNotFound": _SHARE,
    "ImageNotAuthorized": _SHARE,
    "ImageUnacceptable": "upload its content",
    "InvalidSignature": _SIGN,
    "SignatureVerificationError": _SIGN,
    "CertificateValidationFailed": _SIGN,
    "OSError": _UPLOAD,
}
_REACH = (
    "see that Glance runs, and that nova.conf [glance] and the service"
    " catalogue say where"
)
_LEAST_CLIENT_ERROR, _LEAST_SERVER_ERROR = 400, 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ImageLookup:
    """What is known of an image; online if Glance said so just now."""

    facts: bitstreams.ImageFacts
    wanted: bitstreams.ImageRequirement
    is_online: bool


class BitstreamImages:
    """The images that flavors name, as files on this host."""

    def __init__(
        self, settings: conf.BitstreamSettings, api: Any = None
    ) -> None:
        """Keep what these settings allow.

        :param api: Nova's image API, if it isn't to be its usual one.
        """
        self._settings = settings
        self._api = glance.API() if api is None else api
        self._cache = bitstream_cache.BitstreamCache(
            settings.cache_dir, settings.limit
        )

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """Return images' bitstreams, downloaded if they aren't here.

        Glance is asked about each first, also if it is here: what was
        deleted, deactivated or forbidden there is refused. Only where
        Glance can't be reached what is here serves without. All images
        are checked before the first one is downloaded.

        :param context: of the request: its user has to see the images.
        :param keep: images that others still need here; what has to go
            for a new one is none of these.
        :return: by the text that named each.
        :raises BitstreamError: one may not be loaded, or can't be had.
        """
        ids = {image: _id(image) for image in images}
        asked = {
            image: self._ask(context, image)
            for image in sorted(set(ids.values()))
        }
        kept = self._cache.digests(map(_plain, keep)) | {
            one.wanted.sha512 for one in asked.values()
        }
        found = {
            image: self._bring(context, one, kept)
            for image, one in asked.items()
        }
        return {image: found[known] for image, known in ids.items()}

    def recall(self, images: Iterable[str]) -> Mapping[str, model.Bitstream]:
        """Return those bitstreams that are here and still allowed.

        Nobody is asked; what is missing is not in the mapping.
        """
        found = {}
        for image in images:
            try:
                facts = self._recorded(_id(image))
            except errors.BitstreamError as error:
                LOG.debug("not taken from this host: %s", error)
                continue
            bitstream = self._cache.get(facts.id) if facts else None
            if bitstream is not None:
                found[image] = bitstream
        return found

    def _ask(self, context: Any, image: str) -> _ImageLookup:
        """Return what Glance says of an image, checked."""
        try:
            answer = self._api.get(context, image, show_deleted=False)
        except Exception as error:
            if _is_answer(error):
                raise _refusal(image, error) from error
            return self._without_glance(image, error)
        return self._checked(_facts(image, answer), is_online=True)

    def _without_glance(self, image: str, error: Exception) -> _ImageLookup:
        """Return what is recorded, since Glance can't be reached."""
        facts = self._recorded(image)
        if facts is None or self._cache.get(image) is None:
            raise errors.BitstreamError(
                image,
                f"Glance can't be asked ({_words(error)}), and it is not"
                f" kept on this host; {_REACH}",
                is_local=True,
            ) from error
        LOG.warning(
            "bitstream %s is taken from this host, Glance can't be asked: %s",
            image,
            _words(error),
        )
        return self._checked(facts, is_online=False)

    def _checked(
        self, facts: bitstreams.ImageFacts, *, is_online: bool
    ) -> _ImageLookup:
        self._check_allowed(facts)
        return _ImageLookup(
            facts=facts,
            wanted=bitstreams.parse_image(facts, self._settings.limit),
            is_online=is_online,
        )

    def _check_allowed(self, facts: bitstreams.ImageFacts) -> None:
        bitstreams.check_allowed(
            facts, self._settings.images, self._settings.owners
        )

    def _recorded(self, image: str) -> bitstreams.ImageFacts | None:
        """Return what is recorded of an image that may be loaded now.

        :raises BitstreamError: it may not, or isn't verified.
        """
        facts = self._cache.facts(image)
        if facts is None:
            return None
        self._check_allowed(facts)
        needed = _signature(facts.properties)
        if needed and needed != facts.signature:
            raise errors.BitstreamError(
                image,
                "what is kept on this host was not verified as nova.conf"
                f" [glance] asks now; {_REACH}: then it comes anew",
                is_local=True,
            )
        return facts

    def _bring(
        self, context: Any, one: _ImageLookup, keep: Collection[str]
    ) -> model.Bitstream:
        image = one.facts.id
        seconds: list[float] = []

        def fill(half: partial_file.PartialFile) -> None:
            if not one.is_online:
                raise errors.BitstreamError(
                    image,
                    "it went from this host just now, and Glance can't be"
                    f" asked; {_REACH}",
                    is_local=True,
                )
            start = time.monotonic()
            self._download(context, image, half)
            seconds.append(time.monotonic() - start)

        found = self._cache.fetch(one.facts, one.wanted, fill, keep)
        if seconds:
            LOG.info(
                "bitstream %s (function %s, %.1f MiB) fetched in %.1f s",
                image,
                found.function,
                found.size / _MIB,
                seconds[0],
            )
        return found

    def _download(
        self, context: Any, image: str, half: partial_file.PartialFile
    ) -> None:
        """Write an image's content; Nova verifies it where it should.

        Neither with a path nor with nothing to write to: with a path Nova
        writes whatever comes, however much; with nothing it returns what
        it has already read to its end, where it verifies.
        """
        try:
            self._api.download(context, image, data=half)
        except errors.BitstreamError:
            raise
        except Exception as error:
            raise _refusal(image, error) from error


def _id(image: str) -> str:
    """Return an image's id as Glance spells it.

    :raises BitstreamError: it is none.
    """
    found = _plain(image)
    try:
        if str(uuid.UUID(found)) == found:
            return found
    except ValueError:
        pass
    raise errors.BitstreamError(
        image,
        "this is no id of a Glance image; write its UUID, as `openstack"
        " image list` shows it, into the flavor's"
        " accelerator:fpga_bitstream, or behind --bitstream",
    )


def _plain(image: str) -> str:
    return image.strip().lower()


def _facts(image: str, answer: Mapping[str, Any]) -> bitstreams.ImageFacts:
    """Return what Nova's image API says, in this library's words.

    The owner and Glance's own digest are taken from where only Glance can
    write: a user's property of the same name is nothing.
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
    """Return what Nova verifies content with; empty where it does not.

    As ``GlanceImageServiceV2._get_verifier`` decides it, in Nova 32 to 34.
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


def _is_answer(error: Exception) -> bool:
    """Return whether an error says something of the image or the user.

    Clients below Nova raise errors of their own, with an HTTP status where
    somebody answered.
    """
    if isinstance(error, exception.NovaException):
        return not isinstance(error, _NO_ANSWER)
    status = getattr(error, "http_status", None) or getattr(
        error, "code", None
    )
    return isinstance(status, int) and (
        _LEAST_CLIENT_ERROR <= status < _LEAST_SERVER_ERROR
    )


def _refusal(image: str, error: Exception) -> errors.BitstreamError:
    names = [one.__name__ for one in type(error).__mro__]
    mend = next((_MENDS[name] for name in names if name in _MENDS), "")
    return errors.BitstreamError(
        image,
        f"Glance does not give it: {_words(error)}; {mend or _REACH}",
        is_local=not mend and not _is_answer(error),
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")
