"""Train two layers by plain gradient descent, in NumPy."""

from __future__ import annotations

import os

import numpy as np
from safetensors.numpy import save_file

from numpy_trainer.digits import forward, read_digits
from numpy_trainer.files import TASK, WEIGHTS, Log


def main() -> None:
    """Train until the target is reached or the task's epochs are over, then save the weights."""
    if os.environ["WORLD_SIZE"] != "1":
        raise SystemExit("this trainer is one process: run it with --plan dp=1")
    log = Log()
    seed, chosen = log.facts["seed"], log.facts["hybridperf_hyperparameters"]
    rate, size = chosen["optimizer.lr"], chosen["training.global_batch_size"]
    random = np.random.default_rng(seed)
    width = TASK["model"]["hidden"]
    weights = {"w1": random.normal(0, 0.2, (64, width)), "b1": np.zeros(width)}
    weights |= {"w2": random.normal(0, 0.2, (width, 10)), "b2": np.zeros(10)}
    log.write("INTERVAL_END", "init_stop")
    log.write("INTERVAL_START", "run_start")
    images, classes = read_digits(held_out=False)
    asked, right = read_digits(held_out=True)
    status, wanted, ahead = "aborted", np.eye(10)[classes], np.empty(0, dtype=np.int64)
    for epoch in range(1, TASK["limits"]["epochs"] + 1):
        log.write("INTERVAL_START", "block_start", first_epoch_num=epoch, epoch_count=1)
        order = np.random.default_rng([seed, epoch]).permutation(len(images))
        ahead = np.concatenate([ahead, order])  # after what the epoch before has left
        whole, ahead = np.split(ahead, [len(ahead) // size * size])
        for batch in whole.reshape(-1, size):
            hidden, scores = forward(weights, images[batch])
            likely = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (likely / likely.sum(axis=1, keepdims=True) - wanted[batch]) / size
            behind = error @ weights["w2"].T * (hidden > 0)
            weights["w2"] -= rate * hidden.T @ error
            weights["b2"] -= rate * error.sum(axis=0)
            weights["w1"] -= rate * images[batch].T @ behind
            weights["b1"] -= rate * behind.sum(axis=0)
        log.write("INTERVAL_START", "eval_start", epoch_num=epoch)
        quality = float((forward(weights, asked)[1].argmax(axis=1) == right).mean())
        log.write("INTERVAL_END", "eval_stop", epoch_num=epoch)
        log.write("POINT_IN_TIME", "eval_accuracy", quality, epoch_num=epoch)
        log.write("INTERVAL_END", "block_stop", first_epoch_num=epoch)
        if quality >= TASK["quality"]["target"]:
            status = "success"
            break
    log.write("INTERVAL_END", "run_stop", status=status)
    WEIGHTS.parent.mkdir()
    save_file(weights, WEIGHTS)


if __name__ == "__main__":
    main()
