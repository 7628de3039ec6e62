from __future__ import annotations

import numpy as np

from hybridperf.tasks.data.texts.draws import key_of, uniforms

#: the first outputs of SplitMix64 from state 0, as published with it
PUBLISHED = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)


def test_the_numbers_are_those_of_splitmix64() -> None:
    expected = [(number >> 11) * 2.0**-53 for number in PUBLISHED]

    assert uniforms(0, np.array([0]), 4).tolist() == [expected]
    assert uniforms(0, np.array([1, 0]), 2).tolist() == [expected[2:], expected[:2]]


def test_they_are_evenly_spread_in_every_place_and_sample() -> None:
    numbers = uniforms(key_of(5, 7), np.arange(4000), 50)

    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.025
    assert np.abs(numbers.mean(axis=1) - 0.5).max() < 0.21
    assert np.abs(np.histogram(numbers, 16)[0] / numbers.size * 16 - 1).max() < 0.04
    assert np.abs(np.corrcoef(numbers[:, :10].T) - np.eye(10)).max() < 0.08


def test_keys_of_other_seeds_and_epochs_are_others() -> None:
    keys = {key_of(seed, epoch, 1) for seed in range(30) for epoch in range(30)}

    assert len(keys) == 900
