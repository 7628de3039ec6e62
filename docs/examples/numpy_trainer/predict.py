"""Answer which class each held-out image is of, in a process of its own."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load_file

from numpy_trainer.digits import forward, read_digits
from numpy_trainer.files import ANSWER, WEIGHTS

if __name__ == "__main__":
    images, _ = read_digits(held_out=True)
    np.save(ANSWER, forward(load_file(WEIGHTS), images)[1].argmax(axis=1))
