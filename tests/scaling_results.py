"""Made-up results on several numbers of cores."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from hybridperf.log.package import read_package
from hybridperf.score.scaling import Scaling, scale, side_of
from tests.packages import edit_manifest, seal, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package

BASE_TIMES_S = (10.0, 11.0, 12.0, 13.0, 14.0)
TIMES_S = (7.0, 8.0, 8.0, 8.0, 9.0)  #: on two cores: 12 / (2 * 8) is an efficiency of 75 %


def on_cores(package: Package, cores: int, **facts: object) -> Package:
    """Let a made-up result be one of a machine that may use so many ``cores``."""
    description = json.loads(package.system_file.read_text())
    description |= {"hybridperf": {"processor": {"usable_cores": cores}}, **facts}
    package.system_file.write_text(json.dumps(description))
    digest = hashlib.sha256(package.system_file.read_bytes()).hexdigest()
    for path in package.folder.glob("result_*.json"):
        number = int(path.stem.removeprefix("result_"))
        edit_manifest(package, number, system={"path": package.system_file.name, "sha256": digest})
    seal(package.root)
    return package


def write_on(root: Path, cores: int, **result: Any) -> Package:
    """Write a result of as many ranks as ``cores``."""
    result = {"plan": f"dp={cores}", "system": f"on-{cores}"} | result
    return on_cores(write_result(root, **result), cores)


def write_pair(root: Path) -> tuple[Package, Package]:
    """Write a result on one core and one on two."""
    one = write_on(root, 1, times_s=BASE_TIMES_S)
    return one, write_on(root, 2, times_s=TIMES_S)


def scaling_of(*packages: Package, **how: Any) -> Scaling:
    return scale([side_of(read_package(package)) for package in packages], **how)
