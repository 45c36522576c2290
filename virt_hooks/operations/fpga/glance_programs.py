# SPDX-License-Identifier: Apache-2.0
"""Programs of FPGA regions, with bitstreams of Glance images."""

from collections.abc import Iterable, Mapping
from typing import Any

from nova_accel import model
from nova_accel.host.bitstreams import bitstream_cache
from virt_hooks.operations.fpga import bitstream_images, region_programs
from virt_hooks.spawn import programs


class GlancePrograms(region_programs.RegionPrograms):
    """``programs.Programs`` of the FPGA regions of this host."""

    def __init__(self, context: programs.ProgramContext) -> None:
        settings = context.settings
        cache = bitstream_cache.BitstreamCache(
            settings.cache_dir, settings.limit
        )
        super().__init__(context.domains, context.faults, cache.read_file)
        self._images = bitstream_images.BitstreamImages(settings)

    def fetch(
        self, context: Any, images: Iterable[str], keep: Iterable[str] = ()
    ) -> Mapping[str, model.Bitstream]:
        """See ``bitstream_images.BitstreamImages.fetch``."""
        return self._images.fetch(context, images, keep)

    def read_cached(
        self, images: Iterable[str]
    ) -> Mapping[str, model.Bitstream]:
        """See ``bitstream_images.BitstreamImages.read_cached``."""
        return self._images.read_cached(images)

    def remove_partial_files(self) -> None:
        """Remove what interrupted downloads of a killed service left."""
        self._images.remove_partial_files()
