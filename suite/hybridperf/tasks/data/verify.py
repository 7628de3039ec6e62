"""Verification of image data sets: decode every image once, before any timed run.

A record of the decoded files is kept beside them; if it cannot be written, it is remembered until
the process ends.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

from hybridperf.parallel_map import parallel_map
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.tasks.data.samples import refuse_data
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hybridperf.tasks.data.samples import Progress
    from hybridperf.tasks.task import Data

__all__ = ["Image", "Images", "Verification"]

_RECORD: Final = "hybridperf_images.json"
_AT_ONCE: Final = 256  #: images that a process decodes per unit of work
_DECODED: Final[set[str]] = set()  #: identities of the data sets verified by this process


class Image(Protocol):
    """An encoded image."""

    @property
    def name(self) -> str:
        """Return the name of the image in error messages."""

    def decoded_size_px(self) -> tuple[int, int]:
        """Decode the whole image; return width and height in pixels.

        Raises:
            ValueError: if it cannot be decoded.
        """


class Images(Protocol):
    """A sequence of encoded images, read when indexed."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Return the images from ``start`` up to ``stop``, to be sent to another process."""

    def __getitem__(self, indices: slice) -> Sequence[Image]: ...


@dataclass(frozen=True, slots=True)
class Verification:
    """The verification of the images in ``files``, which are below ``folder``."""

    data: Data
    folder: Path
    files: Sequence[Path]
    size_px: int | None = None  #: width and height that every image must have, if given

    def carry_out(self, read: Callable[[], Iterable[Images]], progress: Progress) -> bool:
        """Decode all images that ``read`` returns; return False if that was done before.

        Raises:
            UserError: exit status 4, naming the first image that fails and the number of others.
        """
        identity, record = self._identity(), self.folder / _RECORD
        if identity in _DECODED or identity == _recorded(record):
            return False
        parts = [
            images.part(start, start + _AT_ONCE)
            for images in read()
            for start in range(0, len(images), _AT_ONCE)
        ]
        done, total, damaged = 0, sum(map(len, parts)), list[tuple[str, str]]()
        decode = functools.partial(_damaged, size_px=self.size_px)
        for part, found in zip(
            parts, parallel_map(decode, parts, len(os.sched_getaffinity(0))), strict=True
        ):
            done += len(part)
            damaged += found
            progress(done, total, f"{done:,} images")
        if damaged:
            (name, problem), more = damaged[0], len(damaged) - 1
            size = f" of {self.size_px} x {self.size_px} pixels" if self.size_px else ""
            others = f" (and {more} more such images)" if more else ""
            expected = f"a whole JPEG or PNG{size} in {name}"
            raise refuse_data(self.data, expected, problem + others, "fetch it again")
        _DECODED.add(identity)
        with contextlib.suppress(OSError):  # not writable: the next command decodes again
            write_atomically(record, canonical_json({"decoded": identity}))
        return True

    def _identity(self) -> str:
        """Return the SHA-256 of names, sizes and times of the files, and of the requirements."""
        required = (self.size_px, self.data.train_samples, self.data.eval_samples)
        digest = hashlib.sha256(f"{required}\n".encode())
        for path in self.files:
            status, name = path.stat(), path.relative_to(self.folder).as_posix()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def _recorded(record: Path) -> object:
    try:
        return read_object(record).get("decoded")
    except (OSError, ValueError):
        return None


def _damaged(images: Images, size_px: int | None) -> list[tuple[str, str]]:
    """Return (name, problem) of each image that cannot be decoded or has another size."""
    damaged = []
    for index in range(len(images)):
        (image,) = images[index : index + 1]
        try:
            width, height = image.decoded_size_px()
        except ValueError as error:
            damaged.append((image.name, str(error)))
            continue
        if size_px is not None and (width, height) != (size_px, size_px):
            damaged.append((image.name, f"one of {width} x {height}"))
    return damaged
