"""Encoded images, as files in class folders or as rows of parquet shards; the trainer decodes them.

A folder contains ``train`` and one of ``val``, ``validation`` and ``test``. Either these are
folders with one folder per class, numbered in the order of names; or names of parquet files begin
with them, whose columns are ``image`` and ``label``, as on the Hugging Face hub.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hybridperf.parallel_map import parallel_map
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.tasks.data.samples import (
    DataSource,
    Samples,
    Splits,
    data_folder,
    listing_sha256,
    refuse_data,
    require_counts,
    require_whole,
)
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from hybridperf.tasks.data.samples import PrepareProgress
    from hybridperf.tasks.task import Data

__all__ = ["EncodedImage", "ImageFiles", "ImageRows", "Pictures", "Verification"]

_EVALUATION: Final = ("val", "validation", "test")
_SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".png"})


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of a JPEG or PNG, with a name for error messages."""

    name: str
    content: bytes

    def pixels(self) -> NDArray[np.uint8]:
        """Decode the image to RGB, uint8 [height, width, 3].

        Raises:
            ValueError: if it is not a complete JPEG or PNG.
        """
        import numpy as np

        with self._open() as image:
            return np.array(image.convert("RGB"))

    def decoded_size_px(self) -> tuple[int, int]:
        """Decode the whole image as a check; return its width and height in pixels.

        Raises:
            ValueError: as `pixels`.
        """
        with self._open() as image:
            width, height = image.size
            image.draft(image.mode, (1, 1))  # still reads all of a JPEG, but takes a fifth as long
            image.load()
            return width, height

    @contextlib.contextmanager
    def _open(self) -> Iterator[Image.Image]:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(self.content), formats=("JPEG", "PNG")) as image:
                yield image
        except UnidentifiedImageError:  # its message contains the address of an object
            raise ValueError("neither JPEG nor PNG") from None
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files [image], read when indexed by a slice or by indices [image]."""

    paths: Sequence[Path]

    def part(self, start: int, stop: int) -> ImageFiles:
        """Return the files from ``start`` up to ``stop``."""
        return ImageFiles(self.paths[start:stop])

    def __getitem__(self, indices: slice | NDArray[np.int64]) -> list[EncodedImage]:
        chosen = range(len(self.paths))[indices] if isinstance(indices, slice) else indices
        return [self._read(self.paths[index]) for index in chosen]

    def __len__(self) -> int:
        return len(self.paths)

    def _read(self, path: Path) -> EncodedImage:
        return EncodedImage(str(path), path.read_bytes())


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Rows [image] of a table of encoded images, read when indexed, like `ImageFiles`."""

    table: Any  #: a `datasets.Dataset`
    column: str  #: name of the column with the images
    first: int = 0  #: index of the table's first row in the parquet files

    def part(self, start: int, stop: int) -> ImageRows:
        """Return the rows from ``start`` up to ``stop``."""
        rows = range(start, min(stop, len(self)))
        return ImageRows(self.table.select(rows), self.column, self.first + start)

    def __getitem__(self, indices: slice | NDArray[np.int64]) -> list[EncodedImage]:
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices
        rows = self.table[[int(index) for index in chosen]][self.column]
        return [
            EncodedImage(f"row {self.first + index} of the parquet files", row["bytes"])
            for index, row in zip(chosen, rows, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.table)


class Pictures(DataSource):
    """Encoded images of any size, with their classes."""

    def files(self, data: Data) -> list[Path]:
        """Return all image files, or all parquet shards, of both splits.

        Raises:
            UserError: exit status 4 if a split has none.
        """
        folder = data_folder(data)
        return [path for part in _find_splits(data, folder) for path in part]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of the names and sizes of the files.

        Raises:
            UserError: exit status 4, naming a file that is missing, empty or truncated.
        """
        folder, files = data_folder(data), self.files(data)
        for path in files:
            require_whole(data, path, "an image")
        return listing_sha256(folder, files)

    def verify(self, data: Data, progress: PrepareProgress, size_px: int | None = None) -> bool:
        """Decode every image as a check; return False if that was done before.

        With ``size_px``, every image must have this width and height.

        Raises:
            UserError: exit status 4, naming the first image that fails, or if the number of images
                differs from ``data``.
        """

        def read() -> list[Images]:
            splits = require_counts(data, self.read(data))
            return [splits.train.inputs, splits.evaluation.inputs]

        verification = Verification(data, data_folder(data), self.files(data), size_px)
        return verification.carry_out(read, progress)

    def read(self, data: Data) -> Splits:
        """Return the encoded images, read when indexed, and their classes [sample].

        Raises:
            UserError: as `check`.
        """
        folder = data_folder(data)
        train, evaluation = _find_splits(data, folder)
        if train[0].suffix == ".parquet":
            return Splits(_read_rows(data, train), _read_rows(data, evaluation))
        names = sorted({path.parent.name for path in train})
        return Splits(_read_files(data, train, names), _read_files(data, evaluation, names))


def _find_splits(data: Data, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of the training and the evaluation split, sorted by name."""

    def find(*names: str) -> list[Path]:
        for name in names:
            images = (
                each
                for each in folder.glob(f"{name}/*/*")
                if each.suffix.lower() in _SUFFIXES and not _is_hidden(each)
            )
            if found := sorted(images) or sorted(folder.rglob(f"{name}*.parquet")):
                return found
        expected = f"{folder}/{names[0]}/<class>/ with images, or {names[0]}*.parquet"
        raise refuse_data(data, expected, "neither", f"put {data.source} there")

    return find("train"), find(*_EVALUATION)


def _is_hidden(path: Path) -> bool:
    """Return whether a file, such as ``._x.jpg`` of macOS, or its folder is hidden.

    The image folders of Hugging Face ``datasets`` skip hidden files too.
    """
    return path.name.startswith(".") or path.parent.name.startswith(".")


def _read_files(data: Data, paths: list[Path], names: list[str]) -> Samples:
    import numpy as np

    numbers = {name: number for number, name in enumerate(names)}
    for path in paths:
        if path.parent.name not in numbers:
            expected = f"the class of {path} among the classes of the training images"
            raise refuse_data(data, expected, "a new class", "remove or complete it")
    labels = np.array([numbers[path.parent.name] for path in paths], dtype=np.int64)
    return Samples(ImageFiles(paths), labels)


def _read_rows(data: Data, paths: list[Path]) -> Samples:
    import datasets
    import numpy as np

    try:
        patterns = [glob.escape(str(path)) for path in paths]  # paths are read as glob patterns
        table = datasets.Dataset.from_parquet(patterns)
        column = "image" if "image" in table.column_names else "img"
        table = table.cast_column(column, datasets.Image(decode=False))
        labels = np.array(table["label"], dtype=np.int64)
    except Exception as error:  # datasets passes on the exceptions of many readers
        expected = f"parquet files like {paths[0]} with the columns image and label"
        raise refuse_data(data, expected, str(error).splitlines()[0], "fetch them again") from error
    return Samples(ImageRows(table, column), labels)


_RECORD: Final = "hybridperf_images.json"
_AT_ONCE: Final = 256  #: images that a process decodes per unit of work
_DECODED: Final[set[str]] = set()  #: identities of the data sets verified by this process


Images = ImageFiles | ImageRows


@dataclass(frozen=True, slots=True)
class Verification:
    """The verification of the images in ``files``, which are below ``folder``.

    A file beside them records the verification; if it cannot be written, the process remembers.
    """

    data: Data
    folder: Path
    files: Sequence[Path]
    size_px: int | None = None  #: width and height that every image must have, if given

    def carry_out(self, read: Callable[[], Iterable[Images]], progress: PrepareProgress) -> bool:
        """Decode all images that ``read`` returns; return False if that was done before.

        Raises:
            UserError: exit status 4, naming the first damaged image and the number of further ones.
        """
        identity, record = self._identity(), self.folder / _RECORD
        if identity in _DECODED or identity == _read_record(record):
            return False
        parts = [
            images.part(start, start + _AT_ONCE)
            for images in read()
            for start in range(0, len(images), _AT_ONCE)
        ]
        done, total, damaged = 0, sum(map(len, parts)), list[tuple[str, str]]()
        decode = functools.partial(_find_damaged, size_px=self.size_px)
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


def _read_record(record: Path) -> object:
    try:
        return read_object(record).get("decoded")
    except (OSError, ValueError):
        return None


def _find_damaged(images: Images, size_px: int | None) -> list[tuple[str, str]]:
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
            damaged.append((image.name, f"an image of {width} x {height}"))
    return damaged
