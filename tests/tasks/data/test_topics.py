from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from pydoc_data import topics as module
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import check_data, drop_from_page_cache, load
from hybridperf.tasks.data.topics import CHARACTERS, MASK, MASKED, WINDOW
from hybridperf.tasks.registry import find_task

if TYPE_CHECKING:
    from hybridperf.tasks.task import Data


@pytest.fixture
def data() -> Data:
    return find_task("bert/laptop").data


def _text() -> str:
    return "\n".join(module.topics[name] for name in sorted(module.topics))[:409_600]


def _spelt(rows: object) -> str:
    """Return the characters that numbers stand for, by the published table."""
    table = "*?\n" + "".join(map(chr, range(32, 127)))
    return "".join(table[number] for number in np.asarray(rows).ravel())


def test_the_split_follows_the_published_rule(data: Data) -> None:
    text = "".join(c if c == "\n" or " " <= c <= "~" else "?" for c in _text())
    blocks = [text[first : first + 256] for first in range(0, len(text), 256)]

    splits = load(data)

    train = [block for number, block in enumerate(blocks) if number % 20]
    assert _spelt(splits.train.inputs) == "".join(train)
    held_out = list("".join(block for number, block in enumerate(blocks) if number % 20 == 0))
    answers, hidden = "", []
    for window in range(len(held_out) // WINDOW):
        places = [
            WINDOW * window + place for place in sorted((window + 6 * j) % 32 for j in range(5))
        ]
        answers += "".join(held_out[place] for place in places)
        hidden += places
    assert _spelt(splits.evaluation.labels) == answers
    assert np.flatnonzero(splits.evaluation.inputs == MASK).tolist() == hidden
    for place in hidden:
        held_out[place] = "*"
    assert _spelt(splits.evaluation.inputs) == "".join(held_out)


def test_every_window_has_the_same_number_of_masked_characters(data: Data) -> None:
    splits = load(data)

    assert splits.evaluation.inputs.shape == (data.eval_samples, WINDOW)
    assert ((splits.evaluation.inputs == MASK).sum(axis=1) == MASKED).all()
    assert splits.evaluation.labels.min() > MASK
    assert splits.train.inputs.shape == (data.train_samples, 256)
    assert splits.train.inputs.min() > MASK
    assert splits.train.inputs.max() < CHARACTERS


def test_the_checksum_is_that_of_the_text(data: Data) -> None:
    assert check_data(data) == hashlib.sha256(_text().encode()).hexdigest()


def test_another_edition_is_accepted_with_its_own_checksum(data: Data) -> None:
    other = dataclasses.replace(data, sha256="0" * 64)

    assert check_data(other) == check_data(data)
    with pytest.raises(UserError, match=r"expected data with SHA-256 000000000000\.\.\."):
        check_data(dataclasses.replace(other, editions=None))


def test_the_file_can_be_dropped_from_the_page_cache(data: Data) -> None:
    drop_from_page_cache(data)

    assert len(load(data).train) == data.train_samples


def test_a_python_without_the_text_is_refused(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(UserError, match=r"expected the module pydoc_data\.topics") as refusal:
        check_data(data)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT


def test_too_little_text_is_refused(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    monkeypatch.setattr(module, "topics", {"assert": "short"})

    with pytest.raises(UserError, match=r"expected at least 409600 characters in .*, found 5; use"):
        load(data)
