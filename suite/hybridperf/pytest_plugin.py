"""The options and the fixture of ``pytest --benchmark``.

pytest imports this module in every environment in which HybridPerf is installed. Without
``--benchmark`` it imports only pytest, and only skips benchmarks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.time_to_train import BenchmarkPlugin, TimeToTrain

__all__ = ["time_to_train"]

_NAME: Final = "hybridperf-benchmark"
_SKIP: Final = "trains for minutes: run with --benchmark"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--benchmark`` and the options of benchmarks."""
    group = parser.getgroup("hybridperf", "HybridPerf: times to train")
    group.addoption(
        "--benchmark",
        action="store_true",
        help="run the benchmarks that train to a target, and only those; with --collect-only "
        "print task, plan, runs and projected time of each",
    )
    group.addoption(
        "--hp-task",
        metavar="TASK",
        help="train this task, or the task in this TOML file, instead of the tests' own",
    )
    group.addoption(
        "--hp-plan",
        metavar="PLAN",
        help="train under this plan, such as dp=2, instead of the tests' own",
    )
    group.addoption(
        "--hp-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a hyperparameter, such as optimizer.lr=0.05; may be repeated",
    )
    group.addoption(
        "--hp-runs",
        type=int,
        metavar="N",
        help="runs of each result (default: as the test asks for, else 3)",
    )
    group.addoption(
        "--hp-out",
        type=Path,
        metavar="DIR",
        help="folder of results and leaderboard (default: runs/<date and time>)",
    )
    group.addoption(
        "--hp-baseline",
        type=Path,
        metavar="FOLDER",
        help="compare each result with the result of the same task and plan in this folder",
    )
    group.addoption(
        "--hp-fail-if-slower",
        metavar="PERCENT",
        help="fail a test whose result is slower than its baseline by more than this, such as 3%%, "
        "if Welch's test finds a difference",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that runs benchmarks if ``--benchmark`` is given.

    Raises:
        pytest.UsageError: if pytest-benchmark is missing, or an option is wrong or contradicts the
            benchmarks.
    """
    if not config.getoption("benchmark"):
        return
    if not config.pluginmanager.hasplugin("benchmark"):
        reason = "install it with: pip install 'hybridperf[train]'"
        if config.pluginmanager.is_blocked("benchmark"):
            reason = "drop -p no:benchmark"
        raise pytest.UsageError(f"--benchmark needs pytest-benchmark: {reason}")
    if config.getoption("benchmark_disable") and not config.getoption("benchmark_enable"):
        raise pytest.UsageError("--benchmark and --benchmark-disable exclude each other: drop one")
    if (runs := config.getoption("hp_runs")) is not None and runs < 1:
        raise pytest.UsageError("--hp-runs takes a whole number from 1")
    if config.getoption("dist", "no") != "no":
        # Runs that overlap slow each other; pytest-xdist and pytest-benchmark read this later.
        config.option.dist, config.option.tx, config.option.numprocesses = "no", [], 0
    from hybridperf.errors import UserError
    from hybridperf.time_to_train import BenchmarkPlugin

    try:
        plugin = BenchmarkPlugin(config)
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(plugin, _NAME)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select only the benchmarks with ``--benchmark``; skip them without it."""
    benchmarks = [
        item for item in items if time_to_train.__name__ in getattr(item, "fixturenames", ())
    ]
    plugin: BenchmarkPlugin | None = config.pluginmanager.get_plugin(_NAME)
    if plugin is None:
        for item in benchmarks:
            item.add_marker(pytest.mark.skip(reason=_SKIP))
        return
    others = [item for item in items if item not in benchmarks]
    config.hook.pytest_deselected(items=others)
    items[:] = benchmarks
    for item in benchmarks:
        plugin.prepare(item)


@pytest.fixture
def time_to_train(benchmark: Any, request: pytest.FixtureRequest) -> Iterator[TimeToTrain]:
    """Measure times to train: ``time_to_train("resnet/laptop", plan="dp=2")``."""
    plugin: BenchmarkPlugin | None = request.config.pluginmanager.get_plugin(_NAME)
    if plugin is None:  # the test requested the fixture by name at run time
        pytest.skip(_SKIP)
    measured = plugin.time_to_train(benchmark, request.node)
    yield measured
    if measured.refused:
        benchmark.skipped = True  # else pytest-benchmark warns that it was not used
