"""Logs of lars and lamb carry MLPerf's own names, and these agree with ours."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.reader import read_log
from hybridperf.rules.check import check_path
from tests.packages import change, edit_log, log_path, place, seal, write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package

OWN = {
    "lars": [
        ("lars_opt_base_learning_rate", "run.hyperparameters"),
        ("lars_opt_learning_rate_decay_poly_power", "run.hyperparameters"),
        ("lars_epsilon", "run.hyperparameters"),
        ("lars_opt_learning_rate_decay_steps", "run.derived"),
    ],
    "lamb": [
        ("opt_lamb_beta_1", "run.hyperparameters"),
        ("opt_epsilon", "run.hyperparameters"),
        ("start_warmup_step", "run.hyperparameters"),
        ("opt_learning_rate_training_steps", "run.derived"),
        ("num_warmup_steps", "run.derived"),
    ],
}
CASES = [(name, *each) for name, some in OWN.items() for each in some]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Package]:
    """Return a valid result by each optimiser."""
    packages = {}
    for name in OWN:
        overrides: dict[str, object] = {
            "optimizer.name": name,
            "optimizer.schedule": "poly",
            "optimizer.warmup_epochs": 0.5,
        }
        root = tmp_path_factory.mktemp(name)
        packages[name] = write_result(root, division="open", overrides=overrides)
    return packages


@pytest.mark.parametrize("name", OWN)
def test_a_result_by_it_keeps_the_rules(written: dict[str, Package], name: str) -> None:
    log = read_log(log_path(written[name], 0))

    assert check_path(written[name].root).findings == ()
    assert all(len(log.all(key)) == 1 for key, _ in OWN[name])


@pytest.mark.parametrize(("name", "key", "rule"), CASES)
def test_another_value_than_ours_is_found(
    written: dict[str, Package], tmp_path: Path, name: str, key: str, rule: str
) -> None:
    assert _rules(written[name], tmp_path, lambda bodies: change(bodies, key, value=3.5)) == {rule}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, key, _ in CASES])
def test_older_logs_without_them_stay_valid(
    written: dict[str, Package], tmp_path: Path, name: str, key: str
) -> None:
    def leave_out(bodies: list[str]) -> None:
        del bodies[place(bodies, key)]

    assert _rules(written[name], tmp_path, leave_out) == set()


def _rules(package: Package, tmp_path: Path, edit: Callable[[list[str]], object]) -> set[str]:
    root = shutil.copytree(package.root, tmp_path / "copy").resolve()
    edit_log(dataclasses.replace(package, root=root), 0, edit)
    seal(root)
    return {finding.rule for finding in check_path(root).findings}
