"""Changes to a valid result of where it comes from, each with exactly the rules that find it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.log.chain import GENESIS, SUMS
from hybridperf.rules.evidence import SIGNERS
from tests.evidence import attempt_line, chain, keep_models
from tests.packages import (
    change,
    edit_log,
    edit_manifest,
    log_path,
    place,
    read_bodies,
    shift,
    take_less_time,
)
from tests.rules.mutation import RUN, manifest_of, of_files, of_log, of_manifest

if TYPE_CHECKING:
    from hybridperf.log.package import Package

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB0Ws0Vvc9ctDL5tWJPp1bQ5MWcJ3jV6NslhBhWnJt7b"


def break_chain(package: Package) -> None:
    """Edit a run in the middle, and seal it anew."""
    chain(package)
    edit_log(package, RUN, lambda bodies: change(bodies, keys.CACHE_CLEAR, metadata={"file": "x"}))


def name_another_attempt(package: Package) -> None:
    value: dict[str, object] = {"number": 7, "previous": GENESIS}
    edit_log(package, 4, lambda bodies: bodies.insert(0, attempt_line(bodies[0], value)))


def draw_another_seed(package: Package) -> None:
    chain(package)
    edit_log(package, 4, lambda bodies: change(bodies, keys.SEED, value=77))
    edit_manifest(package, 4, seed=77)


def import_other_code(package: Package) -> None:
    for number, digest in ((0, "0" * 64), (RUN, "1" * 64)):
        facts = {"modules": 2, "python_sha256": "2" * 64, "elsewhere": {"helper": digest}}
        edit_manifest(package, number, imports=facts)


def overlap(package: Package) -> None:
    days_ms = 86_400_000
    edit_log(package, RUN, lambda bodies: shift(bodies, 0, -days_ms))


def repeat_times(package: Package) -> None:
    """Give a run the times of the one before, with a head of its own."""
    times = [json.loads(body)["time_ms"] for body in read_bodies(log_path(package, RUN - 1))]

    def copy(bodies: list[str]) -> None:
        own_ms = json.loads(bodies[0])["time_ms"]
        bodies[:] = [
            json.dumps(json.loads(body) | {"time_ms": own_ms + time_ms - times[0]})
            for body, time_ms in zip(bodies, times, strict=True)
        ]

    edit_log(package, RUN, copy)
    edit_manifest(package, RUN, supervisor={"initialisation_s": 9.0, "run_s": 11.0})


def run_tomorrow_week(package: Package) -> None:
    def move(bodies: list[str]) -> None:
        week_ms = round(time.time() * 1000) + 8 * 86_400_000
        shift(bodies, 0, week_ms - json.loads(bodies[0])["time_ms"])

    edit_log(package, 4, move)


def without_block_time(bodies: list[str]) -> None:
    """Evaluate the second epoch in the millisecond in which the first was."""
    first = json.loads(bodies[place(bodies, keys.EVAL_ACCURACY, 0)])["time_ms"]
    for index in range(place(bodies, keys.EVAL_ACCURACY, 0), place(bodies, keys.BLOCK_STOP, 1)):
        bodies[index] = json.dumps(json.loads(bodies[index]) | {"time_ms": first})


def other_predictions(package: Package) -> None:
    keep_models(package)
    one, other = (package.folder / f"predictions_{number}.npy" for number in (1, RUN))
    other.write_bytes(one.read_bytes()[:-1] + b"\x0b")


def too_good_predictions(package: Package) -> None:
    keep_models(package)
    rescoring = {"problem": "", "quality": 0.9834, "reported": 0.982, "tolerance": 0.0034}
    edit_manifest(package, RUN, rescoring=rescoring)


def other_weights(package: Package) -> None:
    edit_manifest(package, RUN, weights=["weights_2_part_0.safetensors"])
    (package.folder / "weights_2_part_0.safetensors").write_bytes(b"others")


def forge_signature(package: Package) -> None:
    (package.root / SIGNERS).write_text(f"acme {_KEY} acme\n")
    (package.folder / f"{SUMS}.sig").write_text("-----BEGIN SSH SIGNATURE-----\n")


def forge_hardware(package: Package) -> None:
    description = json.loads(package.system_file.read_text())
    facts = {"accelerators": {"used": 0}, "processor": {"model": "", "physical_cores": 2}}
    description |= {"accelerators_per_node": "8", "hybridperf": facts}
    description |= {"accelerator_model_name": "NVIDIA H100"}
    package.system_file.write_text(json.dumps(description))


def too_fast_cores(package: Package) -> None:
    """Compute faster than two cores can."""
    description = json.loads(package.system_file.read_text())
    description |= {"host_processor_core_count": "2", "host_processors_per_node": "1"}
    package.system_file.write_text(json.dumps(description))
    edit_log(package, RUN, lambda bodies: take_less_time(bodies, 0.002))
    edit_manifest(package, RUN, supervisor={"initialisation_s": 9.0, "run_s": 0.024})


def idle(package: Package) -> None:
    """Have no processor time for the steps of the last block."""
    edit_log(
        package,
        RUN,
        lambda bodies: change(bodies, keys.TRACKED_STATS, -1, value={"processor_s": 0.01}),
    )


PROVENANCE = [
    of_files("another module of the same name", import_other_code, "result.imports"),
    of_files("a run edited and sealed anew", break_chain, "result.chain"),
    of_files("an attempt of another number", name_another_attempt, "result.chain"),
    of_files("a seed that was not committed to", draw_another_seed, "result.committed_seeds"),
    of_files("two runs at the same time", overlap, "result.overlap"),
    of_files("two runs of the same times", repeat_times, "result.durations"),
    of_files(
        "two runs with the same weights",
        lambda package: edit_manifest(
            package, RUN + 1, weights_sha256=manifest_of(package)["weights_sha256"]
        ),
        "result.durations",
    ),
    of_files("a run from the future", run_tomorrow_week, "run.date"),
    of_log("an epoch that took no time", without_block_time, "result.plausible"),
    of_manifest("another model", "run.model", model={"count": 1, "values": 602, "sha256": "0"}),
    of_manifest("a predictor of one's own", "run.model", predictor={"package": "mine"}),
    of_files("predictions that were changed", other_predictions, "result.predictions"),
    of_files("a quality above the predictions'", too_good_predictions, "result.predictions"),
    of_manifest(
        "predictions elsewhere", "result.predictions", predictions={"path": "../predictions"}
    ),
    of_files("weights that are others", other_weights, "result.weights"),
    of_manifest(
        "other data under the same names", "result.configuration", data_contents_sha256="0"
    ),
    of_files("a signature that is none", forge_signature, "result.signature"),
    of_files(
        "a statement on a re-run that is none",
        lambda package: (package.folder / "rerun_other.json").write_text("{}"),
        "result.rerun",
    ),
    of_files(
        "accelerators that the harness did not find",
        forge_hardware,
        "result.hardware",
        "result.system",
    ),
    of_files("faster than its cores", too_fast_cores, "result.plausible", "result.system"),
    of_files("a block without the processor time of its steps", idle, "result.plausible"),
]
