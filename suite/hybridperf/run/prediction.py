"""The predictor's side of rescoring: a new process that predicts from weights and inputs alone.

It gets no labels, and in the sandbox shuffled inputs; the harness computes the quality from its
predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from hybridperf.run.spec import RunSpec, weights_parts
from hybridperf.tasks.data import load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["INPUTS", "PREDICTIONS", "Prediction"]

INPUTS: Final = "inputs.npy"  #: in the folder `RunSpec.scoring`
PREDICTIONS: Final = "predictions.npy"  #: in the folder `RunSpec.scoring`


class Prediction:
    """A predictor's access to the run's weights and to the inputs of the evaluation samples."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.task = spec.task()
        self.plan = spec.parallel_plan()  #: plan of the training; the predictor uses its precision

    @classmethod
    def join(cls) -> Self:
        """Return the prediction for the run that the environment names."""
        return cls(RunSpec.from_environment())

    def inputs(self) -> Any:
        """Load the inputs of the evaluation samples, [sample, ...]."""
        import numpy as np

        handed_over = self._spec.scoring / INPUTS
        if handed_over.exists():
            return np.load(handed_over, allow_pickle=False)
        return load(self.task.data).evaluation.inputs

    def weights(self) -> dict[str, Tensor]:
        """Load the final weights by global parameter name.

        Raises:
            ValueError: if two files contain the same name.
        """
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = {}
        for path in weights_parts(self._spec.weights):
            part = load_file(path)
            if twice := weights.keys() & part.keys():
                raise ValueError(f"{path.name} holds {min(twice)} again")
            weights |= part
        return weights

    def answer(self, classes: NDArray[np.int64]) -> None:
        """Save the predicted ``classes`` of `inputs`, [sample] or [sample, label] like labels."""
        import numpy as np

        np.save(self._spec.scoring / PREDICTIONS, classes, allow_pickle=False)
