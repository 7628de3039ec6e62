"""The actions that programs of pipelines are made of."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Action", "ActionKind"]


class ActionKind(Enum):
    """What a rank does with a micro-batch, a step's gradients, or a version of the weights."""

    RECEIVE_ACTIVATION = "receive activation"
    FORWARD = "forward"
    SEND_ACTIVATION = "send activation"
    RECEIVE_GRADIENT = "receive gradient"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward for inputs"  #: half of a split backward pass: gradients of inputs
    BACKWARD_WEIGHT = "backward for weights"  #: its other half: gradients of weights
    SEND_GRADIENT = "send gradient"
    REDUCE = "reduce"  #: all gradients of the step are there; replicas average them from now on
    AWAIT = "await"  #: wait for the averaged gradients of the stage
    UPDATE = "update"  #: wait for the averaged gradients of the step, and apply them
    PUBLISH = "publish"  #: make the updated weights available as a version
    RETIRE = "retire"  #: no later pass needs the version


class Action(NamedTuple):
    """One action of a program."""

    kind: ActionKind
    step: int  #: counted from the start of training
    microbatch: int = 0  #: of the step, for passes and what is sent between stages
    version: int = 0  #: of the weights: computed with, published or retired
    stage: int = 0  #: that the action is of; 0 for those of a whole rank
