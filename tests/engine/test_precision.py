from __future__ import annotations

import math

import pytest
import torch

from hybridperf_reference.engine.precision import DTYPES, LossScale, set_float32_math


def test_only_fp16_scales_the_loss() -> None:
    scales = {name: LossScale(dtype) for name, dtype in DTYPES.items()}

    assert {name: scale.is_dynamic for name, scale in scales.items()} == {
        "fp32": False,
        "tf32": False,
        "bf16": False,
        "fp16": True,
    }
    assert (scales["fp32"].factor, scales["fp16"].factor) == (1.0, 65536.0)


def test_tf32_is_enabled_for_precision_tf32_only() -> None:
    tf32, full = set_float32_math(tf32=True), set_float32_math(tf32=False)

    assert tf32 == {"matmul": "high", "convolution_tf32": True, "cudnn_benchmark": False}
    assert full == {"matmul": "highest", "convolution_tf32": False, "cudnn_benchmark": False}
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_non_finite_step_is_skipped_and_halves_the_scale(norm: float) -> None:
    scale = LossScale(torch.float16)

    assert not scale.adapt(norm)
    assert scale.factor == 32768.0
    assert scale.adapt(1.0)
    assert scale.factor == 32768.0


def test_the_scale_doubles_after_consecutive_finite_steps() -> None:
    scale = LossScale(torch.float16, patience=3)

    assert all(scale.adapt(1.0) for _ in range(2))
    assert not scale.adapt(math.inf)
    factors = []
    for _ in range(7):
        scale.adapt(1.0)
        factors.append(scale.factor)

    assert factors == [32768.0, 32768.0, 65536.0, 65536.0, 65536.0, 131072.0, 131072.0]


def test_gradients_are_unscaled() -> None:
    scale = LossScale(torch.float16)
    scale.factor = 1.0  # adapted since
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 65536.0 * 2)

    scale.unscale([weight, torch.nn.Parameter(torch.ones(1))], 65536.0)

    assert torch.equal(weight.grad, torch.full((3,), 2.0))
