"""The data source of text that `hybridperf prepare` has tokenised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.tasks.data.folder import data_folder
from hybridperf.tasks.data.samples import Samples, Source, Splits, refuse_data
from hybridperf.tasks.data.texts.files import find_texts
from hybridperf.tasks.data.texts.prepared import (
    SPLITS,
    Prepared,
    Record,
    begin_record,
    least_tokens,
)
from hybridperf.tasks.data.texts.vocabulary import VOCABULARY, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.data.samples import Progress
    from hybridperf.tasks.task import Data, Text

__all__ = ["Texts"]


class Texts(Source):
    """Pairs of text segments, some of whose tokens are to be predicted."""

    def files(self, data: Data) -> list[Path]:
        """Return the files that a run reads.

        Raises:
            UserError: as `check`.
        """
        folder = data_folder(data)
        self._current(data)
        prepared = Prepared.beside(folder)
        return [folder / VOCABULARY, *(prepared.path(split) for split in SPLITS)]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of vocabulary and tokens, as recorded when they were made.

        Raises:
            UserError: exit status 4 if a file is missing, empty or truncated, or if the tokens were
                made from other text.
        """
        return self._current(data)[0].sha256

    def prepare(self, data: Data, progress: Progress) -> bool:
        """Tokenise the text; return whether anything remained to be done.

        Raises:
            UserError: exit status 4, as `prepare_texts`.
        """
        from hybridperf.tasks.data.texts.prepare import prepare_texts

        return prepare_texts(data, _text(data), progress)

    def read(self, data: Data) -> Splits:
        """Return training blocks, without labels, and evaluation pairs [sample, tokens, 3].

        The labels of pairs are the tokens to be predicted [sample, masked], in order of position.

        Raises:
            UserError: as `check`.
        """
        import numpy as np

        from hybridperf.tasks.data.texts.pairs import TextBlocks

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
        no_labels = np.zeros((len(train), 0), dtype=np.int64)
        return Splits(Samples(train, no_labels), Samples(held_out.inputs, held_out.targets))

    def _current(self, data: Data) -> tuple[Record, Vocabulary]:
        """Return record and vocabulary of the tokens, after checking that there are enough."""
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
    """Return the task's table ``[data.text]``.

    Raises:
        UserError: exit status 2 if the task has none.
    """
    if data.text is None:
        finding = Finding("data.text", "a table [data.text]", "none", "add it to the task")
        raise UserError(finding, ExitCode.USAGE)
    return data.text
