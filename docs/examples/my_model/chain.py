"""The model as a chain: the parts that stages of a pipeline are made of, in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.images.objective import image_example, image_objective
from my_model.mixer import Mixer

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task


def mixer_chain(task: Task) -> Chain:
    """Return the task's model: its units are the submodules that the task names."""
    numbers: dict[str, Any] = task.model
    model, image_px = Mixer(**numbers), numbers["image_px"]
    return Chain(
        units=tuple(Unit(name, model.get_submodule(name)) for name in task.units),
        objective=image_objective(task, image_px),
        example=partial(image_example, channels=1, image_px=image_px),
    )
