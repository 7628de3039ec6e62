"""Images as files in class folders, or as rows of parquet shards; decoded by whoever trains.

A folder holds ``train`` and one of ``val``, ``validation`` and ``test``: either as folders with one
folder a class, in whose order of names the classes are counted, or as the beginnings of names of
parquet files with the columns ``image`` and ``label``, as the Hugging Face hub keeps them.
"""

from __future__ import annotations

import glob
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from suite.tasks.data.place import data_folder, listing_sha256, require_whole
from suite.tasks.data.samples import Samples, Splits, refuse_data

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from suite.tasks.task import Data

__all__ = ["EncodedImage", "ImageFiles", "ImageRows", "Pictures"]

_EVALUATION: Final = ("val", "validation", "test")
_SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".png"})


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of a JPEG or PNG, and what to call it where it cannot be decoded."""

    name: str
    content: bytes

    def pixels(self) -> NDArray[np.uint8]:
        """Return the image [height, width, 3], decoded.

        Raises:
            ValueError: saying what is there instead of a whole JPEG or PNG.
        """
        import numpy as np
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(self.content), formats=("JPEG", "PNG")) as image:
                return np.array(image.convert("RGB"))
        except UnidentifiedImageError:  # whose words name an object in memory
            raise ValueError("neither JPEG nor PNG") from None
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files, read when they are asked for."""

    paths: Sequence[Path]

    def __getitem__(self, indices: slice | NDArray[np.int64]) -> list[EncodedImage]:
        chosen = range(len(self.paths))[indices] if isinstance(indices, slice) else indices
        return [self._read(self.paths[index]) for index in chosen]

    def __len__(self) -> int:
        return len(self.paths)

    def _read(self, path: Path) -> EncodedImage:
        return EncodedImage(str(path), path.read_bytes())


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Rows of a table of encoded images, read when they are asked for."""

    table: Any
    column: str

    def __getitem__(self, indices: slice | NDArray[np.int64]) -> list[EncodedImage]:
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices
        rows = self.table[[int(index) for index in chosen]][self.column]
        return [
            EncodedImage(f"row {index} of the parquet files", row["bytes"])
            for index, row in zip(chosen, rows, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.table)


class Pictures:
    """Encoded images of any size, with their classes."""

    def files(self, data: Data) -> list[Path]:
        """Return every image file, or every shard.

        Raises:
            Refusal: exit status 4 where there are none, naming what is missing.
        """
        folder = data_folder(data)
        return [path for part in _parts(data, folder) for path in part]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of the names and sizes of the files.

        Raises:
            Refusal: exit status 4, naming a file that is missing, empty or cut off.
        """
        folder, files = data_folder(data), self.files(data)
        for path in files:
            require_whole(data, path, "an image")
        return listing_sha256(folder, files)

    def read(self, data: Data) -> Splits:
        """Return encoded images, and their classes.

        Raises:
            Refusal: as `check`.
        """
        folder = data_folder(data)
        train, evaluation = _parts(data, folder)
        if train[0].suffix == ".parquet":
            return Splits(_rows(data, train), _rows(data, evaluation))
        names = sorted({path.parent.name for path in train})
        return Splits(_files(data, train, names), _files(data, evaluation, names))


def _parts(data: Data, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of the two splits, in the order of their names."""

    def find(*names: str) -> list[Path]:
        for name in names:
            images = (
                each for each in folder.glob(f"{name}/*/*") if each.suffix.lower() in _SUFFIXES
            )
            if found := sorted(images) or sorted(folder.rglob(f"{name}*.parquet")):
                return found
        expected = f"{folder}/{names[0]}/<class>/ with images, or {names[0]}*.parquet"
        raise refuse_data(data, expected, "neither", f"put {data.source} there")

    return find("train"), find(*_EVALUATION)


def _files(data: Data, paths: list[Path], names: list[str]) -> Samples:
    import numpy as np

    numbers = {name: number for number, name in enumerate(names)}
    for path in paths:
        if path.parent.name not in numbers:
            expected = f"the class of {path} among those of the training images"
            raise refuse_data(data, expected, "a new one", "remove or complete it")
    labels = np.array([numbers[path.parent.name] for path in paths], dtype=np.int64)
    return Samples(ImageFiles(paths), labels)


def _rows(data: Data, paths: list[Path]) -> Samples:
    import datasets
    import numpy as np

    try:
        patterns = [glob.escape(str(path)) for path in paths]  # which it takes for such
        table = datasets.Dataset.from_parquet(patterns)
        column = "image" if "image" in table.column_names else "img"
        table = table.cast_column(column, datasets.Image(decode=False))
        labels = np.array(table["label"], dtype=np.int64)
    except Exception as error:  # any: it raises what its readers do, under many names
        expected = f"parquet files like {paths[0]} with the columns image and label"
        raise refuse_data(data, expected, str(error).splitlines()[0], "fetch them again") from error
    return Samples(ImageRows(table, column), labels)
