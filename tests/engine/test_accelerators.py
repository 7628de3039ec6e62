"""What holds on an accelerator: ``pytest -m gpu`` says it on the first machine that has one.

The bounds there are a guess, since no accelerator has been at hand: they are ten times what holds
between processors. Where there is no accelerator, some of the tests run on the processor instead,
so that at least their code is known to work. Each plan has a world of its own: one that fails or
hangs hides no other.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridperf.plan import ParallelPlan
from hybridperf.system.accelerators import probe_accelerators
from hybridperf.system.toolkit import nvml_session
from hybridperf_reference.engine.mesh import local_device
from tests.engine import test_law
from tests.engine.accelerator_worlds import communicate, measure, save_and_resume
from tests.engine.compare import assert_close, assert_computed, found
from tests.engine.compressed import compressed_weights
from tests.engine.law_worlds import Case, run_cases
from tests.engine.ranks import run_ranks
from tests.engine.worlds import run_all

ROOT = Path(__file__).parents[2]
ON_PROCESSOR = not torch.accelerator.is_available()
SLACK = 1.0 if ON_PROCESSOR else 10.0
LONGEST_S = 1500 if ON_PROCESSOR else 300  # what hangs on NCCL would do so for every plan

PLANS = (
    *("resnet:dp=1", "vgg:dp=1", "vit:dp=1", "bert:dp=1", "bert_pairs:dp=1", "bert_lengths:dp=1"),
    *("resnet:microbatches=4,bn=deferred", "vit:microbatches=2,recompute=full"),
    *("vit:precision=bf16", "bert:precision=bf16,microbatches=2", "vit:precision=fp16"),
    *("vit:compile=on", "resnet:compile=on", "bert:compile=on,precision=bf16"),
    *("resnet:dp=2", "vit:dp=2,sync=blocking,microbatches=2", "resnet:dp=2,bn=sync"),
    *("vit:dp=2,zero=1,microbatches=2", "vit:dp=2,zero=2,recompute=2", "bert:dp=2,zero=3"),
    *("vit:dp=2,zero=3,offload=cpu", "vit:dp=2,zero=3,precision=bf16", "vit:dp=2,compile=on"),
    *("vit:dp=2,gradients=bf16", "vit:dp=2,zero=2,gradients=bf16"),
    *("resnet:pp=2", "vgg:pp=2,schedule=gpipe,microbatches=4", "vit:pp=2,precision=bf16"),
    *("bert:pp=2,schedule=interleaved,microbatches=4", "vit:pp=2,schedule=zbv,microbatches=4"),
    *("vit:tp=2", "bert:tp=2,sp=on", "vgg:tp=2", "vit:tp=2,sp=on,precision=bf16"),
    *("resnet:dp=2,pp=2,bn=sync", "vit:dp=2,pp=2,schedule=zbv,zero=1", "vit:dp=4,zero=3,shard=2"),
    *("bert:dp=2,tp=2,sp=on,zero=1", "vit:pp=2,tp=2,schedule=interleaved,recompute=full"),
    *("bert_tied:dp=1", "bert_tied_lamb:pp=2", "bert_tied_adamw:dp=2,pp=2,zero=1"),
    "thrice:pp=2,cuts=2-4-6,schedule=zbv,microbatches=4",
    *("vit:cp=2", "bert:dp=2,cp=2,precision=bf16", "vit:pp=2,cp=2,recompute=full"),
    *("vit:dp=2,pp=2,tp=2,zero=3", "bert_lengths:dp=2,balance=tokens"),
    *("vit:tp=4,tensor=2d", "bert:tp=8,tensor=2.5d,recompute=full", "bert:tp=8,tensor=3d"),
)
PLANS_ON_PROCESSOR = (
    "vit:precision=bf16",
    "vit:dp=2,zero=3,precision=bf16",
    "vit:pp=2,schedule=zbv,microbatches=4",
)
LAWS = (
    Case("vit", "sgd", "dp=2,staleness=1"),
    Case("resnet", "sgd", "dp=2,microbatches=2,staleness=2,bn=deferred"),
    Case("vit", "adamw", "dp=2,gradients=powersgd"),
    Case("vgg", "sgd", "pp=2,staleness=1", clip=0.5),
    Case("resnet", "lamb", "pp=2,microbatches=2,staleness=1,flush=off", clip=0.5),
    Case("vit", "sgd", "pp=3,microbatches=4,staleness=1,flush=off", clip=0.5),
    Case("vit", "adamw", "dp=2,pp=2,staleness=2,flush=off", clip=0.5),
    Case("vgg", "sgd", "pp=4,microbatches=4,staleness=1,flush=off", clip=0.5),
)
LAWS_ON_PROCESSOR = (LAWS[3],)
COMPRESSED = tuple(
    Case("vit", "sgd", f"pp=2,links={links}", fp32=True) for links in ("bf16", "int8", "topk")
)
CHECKPOINTS = ("dp=1", "dp=2,zero=3", "pp=2,schedule=gpipe,microbatches=2", "dp=2,tp=2")


def rows(everywhere: tuple[Any, ...], *, on_processor: tuple[Any, ...]) -> list[Any]:
    """Return each row for as many accelerators as it has ranks, and some for the processor."""
    marked = [
        pytest.param(row, marks=pytest.mark.gpu(ranks_of(row)), id=f"gpu-{row}")
        for row in everywhere
    ]
    reason = "the same test is marked gpu, and this machine has an accelerator"
    skipped = pytest.mark.skipif(not ON_PROCESSOR, reason=reason)
    return [*marked, *(pytest.param(row, marks=skipped, id=f"cpu-{row}") for row in on_processor)]


def ranks_of(row: Any) -> int:
    if isinstance(row, int):
        return row
    text = row.plan if isinstance(row, Case) else row.rpartition(":")[2]
    return ParallelPlan.parse(text).ranks


def run(tmp_path: Path, ranks: int, work: Any, *arguments: object) -> None:
    output = tmp_path / "printed.txt"
    run_ranks(ranks, work, tmp_path, *arguments, output=output, longest_s=LONGEST_S)


@pytest.mark.parametrize("ranks", rows((1, 2, 4), on_processor=(1, 2)))
def test_collectives_of_the_vendor(tmp_path: Path, ranks: int) -> None:
    run(tmp_path, ranks, communicate)

    for rank in range(ranks):
        result = json.loads((tmp_path / f"rank_{rank}.json").read_text())
        own = [[place + 100.0 * other for place in range(2 * ranks)] for other in range(ranks)]
        total = [sum(each) for each in zip(*own, strict=True)]
        assert result["total"] == result["other"] == total
        assert result["part"] == total[2 * rank : 2 * rank + 2]
        assert result["all"] == [*itertools.chain(*own)]
        assert result["first"] == own[0]
        assert ON_PROCESSOR == (result["device"] == "cpu") == (result["backend"] == "gloo")


@pytest.mark.parametrize("item", rows(PLANS, on_processor=PLANS_ON_PROCESSOR))
def test_a_plan_computes_what_one_process_does_on_the_processor(tmp_path: Path, item: str) -> None:
    ranks = ranks_of(item)

    run(tmp_path, ranks, run_all, {0: item})

    assert_computed(item, found(tmp_path, ranks, 0), SLACK)


@pytest.mark.parametrize("case", rows(LAWS, on_processor=LAWS_ON_PROCESSOR))
def test_a_delayed_plan_follows_the_law(tmp_path: Path, case: Case) -> None:
    ranks = ranks_of(case)

    run(tmp_path, ranks, run_cases, {0: case})

    weights = test_law.merged(found(tmp_path, ranks, 0), "weights")
    law = test_law.law_of(case)["weights"]
    assert test_law.largest_error(weights, law) <= 1e-11 * SLACK


@pytest.mark.parametrize("case", rows(COMPRESSED, on_processor=COMPRESSED[2:]))
def test_compressed_links_equal_their_emulation(tmp_path: Path, case: Case) -> None:
    ranks = ranks_of(case)

    run(tmp_path, ranks, run_cases, {0: case})

    weights = test_law.merged(found(tmp_path, ranks, 0), "weights")
    emulated = compressed_weights(case.row(), case.parsed, local_device())
    # A sum in another order may move a value over the bound of a rounding or of the tenth.
    assert test_law.largest_error(weights, emulated) <= (0 if ON_PROCESSOR else 0.02)
    assert test_law.largest_error(weights, test_law.law_of(case)["weights"]) > 1e-4


@pytest.mark.parametrize("plan", rows(CHECKPOINTS, on_processor=CHECKPOINTS[1:2]))
def test_a_checkpoint_is_resumed(tmp_path: Path, plan: str) -> None:
    ranks = ranks_of(plan)

    run(tmp_path, ranks, save_and_resume, plan)

    for rank in range(ranks):
        states = torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True)
        saved, after, loaded, resumed = [state["weights"] | state["moments"] for state in states]
        for name, value in saved.items():
            assert torch.equal(loaded[name], value), name
        assert_close(plan, tensors(resumed), tensors(after), 1e-5 * SLACK)


def tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return those of ``state`` but the gradient's moments that are zero but for rounding."""
    return {name: value for name, value in state.items() if "key.bias" not in name}


@pytest.mark.gpu
def test_a_warm_up_takes_no_more_memory_than_training_and_energy_is_counted(tmp_path: Path) -> None:
    run(tmp_path, 1, measure)

    result = json.loads((tmp_path / "rank_0.json").read_text())
    assert result["train"] > 3 * result["model"], "weights, gradients and momentum"
    assert result["warm_up"] < result["train"] + result["model"] / 2
    if result["joules"] is None:
        pytest.skip("NVML does not tell the energy of these devices")
    assert min(result["joules"].values()) > 0


@pytest.mark.gpu
def test_accelerators_and_their_memory_are_described() -> None:
    described = probe_accelerators()

    assert described["used"] == torch.accelerator.device_count()
    with nvml_session() as library:
        if library is None:
            pytest.skip("there is no NVML: names are all that is described")
    (first, *_) = (gpu for gpu in described["gpus"] if gpu["used"])
    _, total_bytes = torch.accelerator.get_memory_info(0)
    assert first["memory_bytes"] == pytest.approx(total_bytes, rel=0.1)
    assert (first["power_limit_watts"] or 0) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["resnet/laptop", "vgg/laptop", "vit/laptop", "bert/laptop"])
def test_a_run_reaches_the_target_in_bf16(tmp_path: Path, task: str) -> None:
    program = "import sys; from hybridperf.cli import main; sys.exit(main())"
    options = ["--plan", "precision=bf16", "--runs", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-c", program, "run", task, *options]

    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "attempt 0: reached the target in" in done.stderr
    (log,) = tmp_path.rglob("result_0.txt")
    assert "run_stop" in log.read_text()
