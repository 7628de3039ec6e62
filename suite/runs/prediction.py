"""The other worker's side: a fresh process that predicts, from weights and inputs alone.

It never sees a label, so what the harness computes from its answer is the harness's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from suite.runs.spec import RunSpec
from suite.tasks.data import load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Prediction"]


class Prediction:
    """The task of predicting the classes of every evaluation sample."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.task = spec.task()
        self.plan = spec.parallel_plan()  #: of the training: its precision is the model's

    @classmethod
    def join(cls) -> Self:
        """Take the run that the environment names."""
        return cls(RunSpec.from_environment())

    def inputs(self) -> Any:
        """Return what the model is shown of the held-out samples."""
        return load(self.task.data).evaluation.inputs

    def weights(self) -> dict[str, Tensor]:
        """Return the final weights by global parameter names.

        Raises:
            ValueError: where two parts hold the same name.
        """
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = {}
        for path in sorted(self._spec.weights.glob("part_*.safetensors")):
            part = load_file(path)
            if twice := weights.keys() & part.keys():
                raise ValueError(f"{path.name} holds {min(twice)} again")
            weights |= part
        return weights

    def answer(self, classes: NDArray[np.int64]) -> None:
        """Hand in the predicted class of every label of every sample, in order."""
        import numpy as np

        np.save(self._spec.predictions, classes, allow_pickle=False)
