"""Running text in a folder of the user's, prepared by a command of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.tasks.data.place import data_folder
from suite.tasks.data.samples import Samples, Splits, refuse_data
from suite.tasks.data.texts.files import find_texts
from suite.tasks.data.texts.prepared import SPLITS, Prepared, Record, begin_record, least_tokens
from suite.tasks.data.texts.vocabulary import VOCABULARY, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from suite.tasks.data.texts.prepare import Progress
    from suite.tasks.task import Data, Text

__all__ = ["Texts"]


class Texts:
    """Pairs of segments of text, of whose tokens some are to be predicted."""

    def files(self, data: Data) -> list[Path]:
        """Return the files that a run reads.

        Raises:
            Refusal: as `check`.
        """
        folder = data_folder(data)
        self._current(data)
        prepared = Prepared.beside(folder)
        return [folder / VOCABULARY, *(prepared.path(split) for split in SPLITS)]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of vocabulary and tokens, as it was when they were made.

        Raises:
            Refusal: exit status 4, naming what is missing, empty or cut off, or where tokens were
                not made of what is there.
        """
        return self._current(data)[0].sha256

    def prepare(self, data: Data, progress: Progress) -> bool:
        """Make the tokens of the text; return whether anything was left to do.

        Raises:
            Refusal: exit status 4, as `prepare_texts`.
        """
        from suite.tasks.data.texts.prepare import prepare_texts

        return prepare_texts(data, _text(data), progress)

    def read(self, data: Data) -> Splits:
        """Return blocks of text to train on, without labels, and pairs [sample, tokens, 3].

        The labels of a pair are its tokens to be predicted [sample, masked], by place.

        Raises:
            Refusal: as `check`.
        """
        import numpy as np

        from suite.tasks.data.texts.pairs import TextBlocks

        record, vocabulary = self._current(data)
        prepared = Prepared.beside(data_folder(data))
        train, evaluation = (
            TextBlocks(
                prepared.path(split),
                record.tokens(split),
                samples,
                _text(data),
                vocabulary.special,
            )
            for split, samples in zip(SPLITS, (data.train_samples, data.eval_samples), strict=True)
        )
        held_out = evaluation.held_out()
        nothing = np.zeros((len(train), 0), dtype=np.int64)
        return Splits(Samples(train, nothing), Samples(held_out.inputs, held_out.targets))

    def _current(self, data: Data) -> tuple[Record, Vocabulary]:
        """Return the record of the tokens, having made sure that they are enough."""
        text, folder = _text(data), data_folder(data)
        files, vocabulary = find_texts(data, folder), read_vocabulary(data, text, folder)
        record = Prepared.beside(folder).current(data, begin_record(files, vocabulary))
        for split, samples in zip(SPLITS, (data.train_samples, data.eval_samples), strict=True):
            least = least_tokens(text, samples)
            if record.tokens(split) < least:
                expected = f"at least {least} tokens for {samples} {split} samples in {folder}"
                remedy = f"put all of {data.source} there and prepare it again"
                raise refuse_data(data, expected, str(record.tokens(split)), remedy)
        return record, vocabulary


def _text(data: Data) -> Text:
    """Return how samples are made of the text.

    Raises:
        Refusal: exit status 2 where the task does not say.
    """
    if data.text is None:
        finding = Finding("data.text", "a table [data.text]", "none", "add it to the task")
        raise Refusal(finding, ExitCode.USAGE)
    return data.text
