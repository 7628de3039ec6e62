"""Every plan computes what one process computes on the same global batch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from reference_impls.engine.optim import build_optimizer, learning_rate
from reference_impls.engine.stage import Stage
from reference_impls.models import chain_of
from suite.plan import ParallelPlan
from tests.engine.worlds import SEED, small_task, training_data

if TYPE_CHECKING:
    from pathlib import Path

WORLDS = {
    1: ("dp=1", "microbatches=4"),
    2: ("dp=2", "dp=2,microbatches=2", "pp=2", "pp=2,schedule=gpipe,microbatches=4", "dp=2"),
    4: (
        "dp=4",
        "pp=4",
        "dp=2,pp=2",
        "dp=2,pp=2,schedule=gpipe,microbatches=4",
        "pp=4,schedule=gpipe,microbatches=2",
    ),
}
PLANS = [
    (ranks, number, plan) for ranks, plans in WORLDS.items() for number, plan in enumerate(plans)
]
# Sums of fp32 numbers in another order: all-reduce adds replicas, not samples.
RELATIVE = 1e-5


@dataclass
class Outcome:
    """What a plan's ranks left, put together; or what one process computed."""

    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    qualities: list[float]
    statistics: list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Outcome]:
    """Start each world once and collect what all of its plans computed."""
    found = {}
    for ranks, plans in WORLDS.items():
        folder = tmp_path_factory.mktemp(f"world_{ranks}")
        run_world(folder, ranks, plans)
        for number in range(len(plans)):
            parts = [
                torch.load(folder / f"plan_{number}_rank_{rank}.pt", weights_only=True)
                for rank in range(ranks)
            ]
            found[ranks, number] = Outcome(
                gradients=merged(parts, "gradients"),
                weights=merged(parts, "weights"),
                qualities=[part["quality"] for part in parts],
                statistics=[part["statistics"] for part in parts],
            )
    return found


def run_world(folder: Path, ranks: int, plans: tuple[str, ...]) -> None:
    arguments = ["--standalone", f"--nproc-per-node={ranks}", "-m", "tests.engine.worlds"]
    command = [sys.executable, "-m", "torch.distributed.run", *arguments, str(folder), *plans]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-4000:]


def merged(parts: list[dict[str, Any]], kind: str) -> dict[str, Tensor]:
    """Put stages together, having made sure that replicas of one stage agree to the bit."""
    whole: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part[kind].items():
            assert torch.equal(whole.setdefault(name, value), value), f"replicas differ in {name}"
    return whole


def one_process(plan: ParallelPlan) -> Outcome:
    """Compute in this process, without any parallel machinery, what ``plan`` should.

    BatchNorm normalises by micro-batch, each replica keeps running statistics of its own, and
    they are averaged before evaluation: that is the plan's stated meaning.
    """
    torch.set_num_threads(1)  # as the ranks: threads add in another order
    task, splits = small_task()
    replicas = [Stage(chain_of(task, SEED).units).train() for _ in range(plan.dp)]
    chain = chain_of(task, SEED)
    optimizers = [build_optimizer(replica, task.optimizer) for replica in replicas]
    loss = nn.CrossEntropyLoss(label_smoothing=task.training.label_smoothing)
    data = training_data(task, splits)
    numbers = torch.from_numpy(chain.augment.draw(SEED, 1, len(splits.train)))
    first: dict[str, Tensor] = {}
    for batch in data.batches():
        shares = torch.from_numpy(batch.indices).chunk(plan.dp)
        for replica, share in zip(replicas, shares, strict=True):
            replica.zero_grad()
            for part in share.chunk(plan.microbatches):
                images = torch.from_numpy(splits.train.images)[part]
                labels = torch.from_numpy(splits.train.labels)[part]
                inputs = chain.augment.apply(chain.prepare(images), numbers[part])
                (loss(replica(inputs), labels) / plan.microbatches).backward()
        for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
            mean = torch.stack([gradient_of(parameter) for parameter in parameters]).mean(dim=0)
            for parameter in parameters:
                parameter.grad = mean.clone()
        if not first:
            first = {name: gradient_of(p) for name, p in replicas[0].named_parameters()}
            first = copy.deepcopy(first)
        rate = learning_rate(batch.step, task.steps_per_epoch, task.optimizer)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
    states = [replica.state_dict() for replica in replicas]
    whole = replicas[0]
    for name, value in whole.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.stack([state[name] for state in states]).mean(dim=0))
    whole.eval()
    with torch.no_grad():
        logits = whole(chain.prepare(torch.from_numpy(splits.evaluation.images)))
    right = logits.argmax(dim=1) == torch.from_numpy(splits.evaluation.labels)
    return Outcome(first, dict(whole.state_dict()), [right.double().mean().item()], [])


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare each tensor by the norm of its error, relative to its own norm or the mean one."""
    assert actual.keys() == expected.keys()
    norms = [value.double().norm().item() for value in expected.values()]
    for name, value in expected.items():
        error = (actual[name].double() - value.double()).norm().item()
        scale = max(value.double().norm().item(), sum(norms) / len(norms) * 1e-3)
        assert error <= RELATIVE * scale, f"{name}: relative error {error / scale:.2e}"


@pytest.mark.parametrize(("ranks", "number", "plan"), PLANS)
def test_a_plan_computes_what_one_process_does(
    outcomes: dict[tuple[int, int], Outcome], ranks: int, number: int, plan: str
) -> None:
    expected = one_process(ParallelPlan.parse(plan))

    actual = outcomes[ranks, number]

    assert_close(actual.gradients, expected.gradients)
    assert_close(actual.weights, expected.weights)
    assert len(set(actual.qualities)) == 1, "every rank sees the same quality"
    assert abs(actual.qualities[0] - expected.qualities[0]) <= 2 / 602


def test_the_same_plan_and_seed_give_the_same_bits(
    outcomes: dict[tuple[int, int], Outcome],
) -> None:
    first, again = outcomes[2, 0], outcomes[2, 4]

    assert WORLDS[2][0] == WORLDS[2][4]
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)


@pytest.mark.parametrize(("ranks", "number", "plan"), PLANS)
def test_every_rank_reports_the_parts_of_its_time(
    outcomes: dict[tuple[int, int], Outcome], ranks: int, number: int, plan: str
) -> None:
    statistics = outcomes[ranks, number].statistics[0]

    parsed = ParallelPlan.parse(plan)
    places = [(stage["replica"], stage["stage"]) for stage in statistics["stages"]]
    assert places == [(r, s) for r in range(parsed.dp) for s in range(parsed.pp)]
    assert all(stage["compute_s"] > 0 for stage in statistics["stages"])
    assert (statistics["exposed_communication"] > 0) == (parsed.dp > 1)
    assert 0 <= statistics["bubble"] < 1
