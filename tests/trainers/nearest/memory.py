"""What the trainer has memorised, and how it answers from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from hybridperf.run.spec import weights_folder

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hybridperf.run.spec import RunSpec

__all__ = ["Memory"]

SHARES = (0.5, 0.8, 1.0)  #: of each epoch's batches that are memorised, by epoch


class Memory:
    """Images and their classes."""

    def __init__(self) -> None:
        self.images = np.zeros((0, 64), dtype=np.float32)
        self.labels = np.zeros(0, dtype=np.int64)
        self.count = 0  #: of samples that are known, or were when the run was interrupted

    def fill(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        """Know these samples."""
        self.images = images.reshape(len(images), -1).astype(np.float32)
        self.labels = labels
        self.count = len(labels)

    def answer(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the class of the nearest sample known."""
        asked = images.reshape(len(images), -1).astype(np.float32)
        distances = (self.images**2).sum(1) - 2 * asked @ self.images.T
        nearest: NDArray[np.int64] = distances.argmin(axis=1)
        return self.labels[nearest]

    def save(self, work: Path) -> None:
        """Hand the samples over as weights."""
        folder = weights_folder(work)
        folder.mkdir(exist_ok=True)
        tensors: dict[str, NDArray[Any]] = {"images": self.images, "labels": self.labels}
        save_file(tensors, folder / "part_0.safetensors")

    def checkpoint(self, folder: Path) -> None:
        """Write down how much is known."""
        folder.mkdir(exist_ok=True)
        (folder / "count.txt").write_text(f"{self.count}")

    def resume(self, folder: Path) -> None:
        """Make sure that something was known; what, each epoch tells anew."""
        self.count = int((folder / "count.txt").read_text())
        assert self.count > 0

    def load(self, spec: RunSpec) -> None:
        """Know the samples that were saved."""
        tensors = load_file(spec.weights / "part_0.safetensors")
        self.images, self.labels = tensors["images"], tensors["labels"]
