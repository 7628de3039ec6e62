"""Encoded images as a data set hands them out."""

from __future__ import annotations

import io

import numpy as np

from hybridperf.tasks.data import Samples
from hybridperf.tasks.data.pictures import EncodedImage

__all__ = ["Rows", "encoded", "encoded_samples"]


class Rows(list[EncodedImage]):
    """A list that also takes arrays of indices."""

    def __getitem__(self, indices: object) -> list[EncodedImage]:  # type: ignore[override]  # as samples do
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices
        return [list.__getitem__(self, int(index)) for index in chosen]  # type: ignore[attr-defined]  # an array of indices


def encoded(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], mode: str = "RGB"
) -> EncodedImage:
    """Return an image [height, width, 3] as a JPEG of ``mode``."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG")
    return EncodedImage(f"a {mode} image", file.getvalue())


def encoded_samples(count: int) -> Samples:
    """Return ``count`` images of noise, of classes 0 to 9 in turn."""
    generator = np.random.default_rng(0)
    rows = Rows(
        encoded(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(count)
    )
    return Samples(rows, np.arange(count, dtype=np.int64) % 10)
