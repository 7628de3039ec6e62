"""What arrives of activations that a pipeline's links compress, and how many bytes they take."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hybridperf.plan.fields import FIELDS
from hybridperf_reference.engine.link import LINK_CODECS, LinkCodec, LinkKey
from tests.tiers import grid

KEY = LinkKey(seed=7, step=3, microbatch=5, boundary=1, gradient=False)
SHAPES = [(4, 6, 5, 7), (2, 9, 12), (8, 10), (3, 5, 2, 2, 2), (1, 1), (0, 3, 2, 2)]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INT8 = LINK_CODECS["int8"]


def _drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return values.to(dtype)


def _through(codec: LinkCodec, values: torch.Tensor, key: LinkKey = KEY) -> torch.Tensor:
    return codec.decode(codec.encode(values, key), values.shape, values.dtype)


def _per_channel(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` as [channel, other]: dimension 1 of images, else the last one."""
    return values.movedim(1 if values.dim() > 3 else -1, 0).flatten(1)


def test_the_codecs_are_the_values_of_the_plans_field() -> None:
    assert set(LINK_CODECS) == set(FIELDS["links"].words)


@pytest.mark.parametrize(("name", "shape", "dtype"), grid(LINK_CODECS, SHAPES, FLOATS))
def test_what_is_received_into_has_the_form_of_what_is_sent(
    name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    codec, values = LINK_CODECS[name], _drawn(shape, dtype).requires_grad_()

    sent = codec.encode(values, KEY)
    buffer = codec.wire(shape, dtype, values.device)
    arrived = codec.decode(buffer.copy_(sent), shape, dtype)

    assert (sent.shape, sent.dtype) == (buffer.shape, buffer.dtype)
    assert sent.is_contiguous()
    assert not sent.requires_grad
    assert (arrived.shape, arrived.dtype) == (values.shape, dtype)
    assert arrived.is_contiguous()


@pytest.mark.parametrize(
    ("name", "most_bytes"),
    [
        ("none", 4 * 8 * 16 * 32 * 32),
        ("bf16", 2 * 8 * 16 * 32 * 32),
        ("int8", 8 * 16 * 32 * 32 + 4 * 16),
        ("topk", 8 * (8 * 16 * 32 * 32 // 10)),
    ],
)
def test_bytes_on_the_link(name: str, most_bytes: int) -> None:
    assert LINK_CODECS[name].encode(_drawn((8, 16, 32, 32)), KEY).nbytes == most_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_uncompressed_links_change_nothing_and_bf16_rounds(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    values = _drawn(shape, dtype)

    assert torch.equal(_through(LINK_CODECS["none"], values), values)
    assert torch.equal(_through(LINK_CODECS["bf16"], values), values.bfloat16().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_the_error_of_int8_is_less_than_the_scale(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    # Channels of very different sizes: one scale for all would lose the small ones.
    sizes = torch.logspace(-20, 20, shape[1 if len(shape) > 3 else -1], dtype=torch.float64)
    values = _drawn(shape, torch.float64).movedim(1 if len(shape) > 3 else -1, -1)
    values = (values * sizes).movedim(-1, 1 if len(shape) > 3 else -1).to(dtype)

    found, exact = (_per_channel(each).double() for each in (_through(INT8, values), values))

    scale = exact.abs().amax(dim=1, keepdim=True) / 127
    assert ((found - exact).abs() < scale * (1 + 1e-4)).all()


def test_the_mean_error_of_int8_is_zero() -> None:
    values = _drawn((64, 16, 32, 32))
    scale = _per_channel(values).abs().amax(dim=1, keepdim=True) / 127

    error = (_per_channel(_through(INT8, values)) - _per_channel(values)).double() / scale

    assert error.abs().max() > 0.9  # rounding to nearest would have 0.5 at most
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(error.numel())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
def test_int8_rounds_up_as_often_as_the_fraction_says(share: float) -> None:
    count = 100_000
    values = torch.full((count, 1), 3 + share)
    values[0] = 127  # so that the scale is 1

    found = _through(INT8, values)[1:]

    assert set(found.unique().tolist()) == {3.0, 4.0}
    spread = math.sqrt(share * (1 - share) / count)
    assert abs((found == 4).double().mean() - share) < 4 * spread


def test_int8_keeps_whole_multiples_of_the_scale() -> None:
    values = torch.arange(-127.0, 128.0).repeat(4000, 1).T.contiguous()

    assert torch.equal(_through(INT8, values), values)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_int8_is_what_a_plain_computation_of_it_gives(shape: tuple[int, ...]) -> None:
    values = _drawn(shape)
    seed = np.random.SeedSequence([7, 3, 5, 1, 0]).generate_state(1, np.uint64)[0]
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(int(seed))).numpy()
    expected = np.empty(shape, np.float32)
    axis = 1 if len(shape) > 3 else len(shape) - 1
    for channel in range(shape[axis]):
        at = tuple(channel if i == axis else slice(None) for i in range(len(shape)))
        part = values.numpy()[at]
        scale = np.abs(part).max() / np.float32(127)
        low = np.floor(part / scale)
        up = drawn[at] < part / scale - low
        expected[at] = np.clip(low + up, -127, 127) * scale

    assert np.array_equal(_through(INT8, values).numpy(), expected)


def test_the_draws_of_int8_follow_from_the_key_alone() -> None:
    values = _drawn((4, 6, 5, 7))
    first = INT8.encode(values, KEY)
    torch.manual_seed(1)

    assert torch.equal(INT8.encode(values, KEY), first)
    others = [KEY._replace(**{name: getattr(KEY, name) + 1}) for name in KEY._fields[:4]]
    others += [KEY._replace(gradient=True), KEY._replace(seed=2**63 + 1)]
    for key in others:
        assert not torch.equal(INT8.encode(values, key), first), key


@pytest.mark.parametrize("name", LINK_CODECS)
def test_the_memory_format_changes_no_bit(name: str) -> None:
    values = _drawn((4, 6, 5, 7))
    strided = values.to(memory_format=torch.channels_last)

    assert torch.equal(
        LINK_CODECS[name].encode(strided, KEY), LINK_CODECS[name].encode(values, KEY)
    )


@pytest.mark.parametrize(
    ("name", "dtype", "wrong"), grid(LINK_CODECS, FLOATS[2:], (math.nan, math.inf, -math.inf))
)
def test_what_is_not_finite_arrives_so(name: str, dtype: torch.dtype, wrong: float) -> None:
    values = _drawn((4, 6, 5, 7), dtype)
    values[2, 3, 1, 1] = wrong

    found = _through(LINK_CODECS[name], values)

    assert not found[2, 3, 1, 1].isfinite()
    others = [channel for channel in range(6) if channel != 3]
    assert found[:, others].isfinite().all()


def test_int8_spoils_only_the_channel_that_is_not_finite() -> None:
    values = _drawn((4, 6, 5, 7))
    clean = _through(INT8, values)
    values[2, 3, 1, 1] = math.inf

    found = _through(INT8, values)

    assert found[:, 3].isnan().all()
    others = [channel for channel in range(6) if channel != 3]
    assert torch.equal(found[:, others], clean[:, others])


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-40, 1e-37, 3e38])
def test_int8_of_channels_of_zeros_and_of_extreme_sizes(largest: float) -> None:
    values = torch.tensor([[largest, 1.0], [-largest / 2, -1.0], [0.0, 0.0]])

    found = _through(INT8, values)

    scale = max(largest / 127, torch.finfo(torch.float32).tiny)
    assert ((found - values).abs() <= torch.tensor([scale, 1 / 127]) * (1 + 1e-6)).all()
    assert (found[2] == 0).all()


def test_int8_is_decoded_from_any_place_in_a_buffer() -> None:
    values = _drawn((3, 5, 2, 2))
    sent = INT8.encode(values, KEY)
    buffer = torch.zeros(sent.numel() + 3, dtype=torch.int8)
    buffer[3:] = sent

    assert torch.equal(INT8.decode(buffer[3:], values.shape, values.dtype), _through(INT8, values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_topk_keeps_the_tenth_that_is_largest(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = _drawn(shape, dtype)
    flat = values.flatten().numpy()
    kept = np.argsort(-np.abs(flat))[: max(1, len(flat) // 10)]
    expected = np.zeros_like(flat)
    expected[kept] = flat[kept].astype(np.float32)

    assert np.array_equal(_through(LINK_CODECS["topk"], values).flatten().numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_topk_keeps_the_first_of_equal_magnitudes(dtype: torch.dtype, distinct: int) -> None:
    draws = torch.Generator().manual_seed(1)
    values = torch.randint(1, 1 + distinct, (4, 6, 5, 7), generator=draws).to(dtype)
    values *= torch.randint(0, 2, values.shape, generator=draws) * 2 - 1
    flat = values.flatten().float().numpy()
    kept = np.argsort(-np.abs(flat), kind="stable")[: len(flat) // 10]
    expected = np.zeros_like(flat)
    expected[kept] = flat[kept]

    assert np.array_equal(_through(LINK_CODECS["topk"], values).flatten().float(), expected)


def test_topk_of_fewer_values_than_it_may_keep() -> None:
    values = torch.zeros(2, 3, 10, 10)
    values[1, 2, 3, 4] = -5

    assert torch.equal(_through(LINK_CODECS["topk"], values), values)
