"""Find the files of a data set written by ``save_to_disk`` of Hugging Face ``datasets``.

A saved set is a folder of arrow files with ``state.json``, which lists them in the order of their
rows. If several were saved together, ``dataset_dict.json`` beside their folders lists them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from hybridperf.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.task import Data

__all__ = ["saved_shards"]

_STATE, _TOGETHER = "state.json", "dataset_dict.json"
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  #: end-of-stream marker of Arrow's IPC format
_REMEDY: Final = "save it again with save_to_disk"


class _Shard(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename={"shards": "_data_files"}):
    shards: list[_Shard]


class _Together(msgspec.Struct):
    splits: list[str]


_Named = TypeVar("_Named", _State, _Together)


def saved_shards(data: Data, folder: Path) -> list[Path]:
    """Return the files of the set saved in ``folder``, in the order of rows; empty if none is.

    Raises:
        UserError: exit status 4 if a file, or a set saved together with it, is missing or
            truncated.
    """
    if not (folder / _STATE).is_file():
        return []
    together = folder.parent / _TOGETHER
    if together.is_file():
        for split in _read(data, together, _Together).splits:
            _require(data, together.parent, split, within=_STATE)
    names = [shard.filename for shard in _read(data, folder / _STATE, _State).shards]
    paths = [_require(data, folder, name) for name in names]
    for path in paths:
        with path.open("rb") as file:
            file.seek(max(-len(_END), -path.stat().st_size), os.SEEK_END)
            if file.read() != _END:
                raise refuse_data(data, f"{path} to end as arrow does", "a file cut off", _REMEDY)
    return paths


def _read(data: Data, path: Path, kind: type[_Named]) -> _Named:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise refuse_data(data, f"{path} as save_to_disk writes it", str(error), _REMEDY) from error


def _require(data: Data, folder: Path, name: str, within: str = "") -> Path:
    """Return the file ``name`` in ``folder``, or the file ``within`` its subfolder ``name``.

    Raises:
        UserError: exit status 4 if it does not exist.
    """
    names = {each.name for each in folder.iterdir()}  # excludes names such as ../x
    if name in names and (path := folder / name / within).is_file():
        return path
    raise refuse_data(data, f"the {name} that was saved in {folder}", "none", _REMEDY)
