"""Run a checkout of MLPerf's log checker, named by an environment variable, for comparison."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import io
    from pathlib import Path

__all__ = ["CHECKOUT", "official_package", "official_verdict"]

#: the folder that holds the package ``mlperf_logging``; it is not part of this suite
CHECKOUT = os.environ.get("HYBRIDPERF_MLPERF_LOGGING", "")


def official_verdict(log: Path, ruleset: str) -> Literal["valid", "invalid", "crash"]:
    """Return what the checker says of ``log`` by ``ruleset``, such as 2.1.0."""
    checker = _module()
    checker.enqueued_configs.clear()  # it keeps those of a file that it could not finish
    judge = checker.make_checker("training", ruleset, quiet=True, werror=False)
    try:
        valid, *_ = checker.main(str(log), f"training_{ruleset}/common.yaml", judge)
    except Exception:
        return "crash"
    return "valid" if valid else "invalid"


def official_package(folder: Path, ruleset: str) -> Literal["valid", "invalid"]:
    """Return what the package checker says of an organisation's ``folder``; invalid if it crashes.

    It writes ``scaling.json`` into the folder.
    """
    _module()
    package = importlib.import_module("mlperf_logging.package_checker.package_checker")
    results = (str(folder), "training", ruleset, True, False, False, True, False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            described = package.check_systems(str(folder), "training", ruleset)
            passed = package.check_training_result_files(*results)
    except Exception:
        return "invalid"
    return "valid" if described and passed else "invalid"


@functools.cache
def _module() -> Any:
    logging.disable(logging.CRITICAL)  # its messages
    sys.path.insert(0, CHECKOUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its escape sequences
        module = importlib.import_module("mlperf_logging.compliance_checker.mlp_compliance")
    module.yaml = _CachedYaml(module.yaml)  # type: ignore[attr-defined]  # the module's import
    return module


class _CachedYaml:
    """YAML whose files are parsed once: the checker parses its rules anew for every log."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self.BaseLoader = yaml.BaseLoader
        self._parsed: dict[str, Any] = {}

    def load(self, file: io.TextIOWrapper, Loader: Any) -> Any:  # noqa: N803 - its name there
        if file.name not in self._parsed:
            self._parsed[file.name] = self._yaml.load(file, Loader=Loader)
        return self._parsed[file.name]
