"""Ranks of a replica drop the same activations, replicas drop others."""

from __future__ import annotations

import itertools

import torch

from reference_impls.engine.random_numbers import (
    begin_random_numbers,
    random_state,
    restore_random_state,
)


def dropped(seed: int, step: int, replica: int) -> list[bool]:
    begin_random_numbers(seed, step, replica)
    return (torch.nn.functional.dropout(torch.ones(64)) == 0).tolist()


def test_ranks_of_a_replica_drop_the_same_activations() -> None:
    assert dropped(3, 10, 1) == dropped(3, 10, 1)


def test_seeds_steps_and_replicas_each_drop_others() -> None:
    drawn = [dropped(*numbers) for numbers in itertools.product((3, 4), (0, 10), (0, 1))]

    assert all(one != other for one, other in itertools.combinations(drawn, 2))


def test_numbers_go_on_where_they_were() -> None:
    begin_random_numbers(3, 0, 0)
    state = random_state()
    first = torch.rand(5)

    restore_random_state(state)

    assert torch.equal(torch.rand(5), first)
