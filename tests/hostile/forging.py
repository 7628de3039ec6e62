"""What a lying operator does to a result that he writes by hand."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

from hybridperf.log import keys
from hybridperf.log.chain import SUMS
from hybridperf.log.package import result_names
from hybridperf.rules.evidence import RERUN, RESULT, sign_file
from tests.evidence import (
    LANDLOCK,
    chain,
    last_hash,
    list_key,
    make_key,
    numbers_of,
    state_sandbox,
)
from tests.packages import (
    change,
    edit_log,
    edit_manifest,
    log_path,
    place,
    read_bodies,
    seal,
    shift,
    take_less_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.log.package import Package


DAY_MS = 86_400_000


def every_manifest(**facts: object) -> Callable[[Package], None]:
    """Return what writes ``facts`` into every manifest; None leaves one out."""

    def apply(package: Package) -> None:
        for number in numbers_of(package):
            path = package.folder / result_names(number)[1]
            manifest = json.loads(path.read_text()) | facts
            kept = {key: value for key, value in manifest.items() if value is not None}
            path.write_text(json.dumps(kept))
        seal(package.root)

    return apply


def every_log(edit: Callable[[list[str]], object]) -> Callable[[Package], None]:
    """Return what edits every log, and writes all that follows anew."""

    def apply(package: Package) -> None:
        for number in numbers_of(package):
            edit_log(package, number, edit)
        chain(package)

    return apply


def one_log(
    edit: Callable[[list[str]], object], number: int = 2, *, again: bool = True
) -> Callable[[Package], None]:
    """Return what edits one log; ``again``: all that follows is written anew."""

    def apply(package: Package) -> None:
        edit_log(package, number, edit)
        if again:
            chain(package)
        seal(package.root)

    return apply


def drop(package: Package, number: int) -> None:
    for name in (*result_names(number), f"predictions_{number}.npy"):
        (package.folder / name).unlink()
    seal(package.root)


def drop_and_renumber(package: Package) -> None:
    """Leave a slow run out, and give its number to the last one."""
    drop(package, 1)
    rename(package, 4, 1)


def rename(package: Package, old: int, new: int) -> None:
    names = zip(result_names(old), result_names(new), strict=True)
    for one, other in (*names, (f"predictions_{old}.npy", f"predictions_{new}.npy")):
        (package.folder / one).rename(package.folder / other)
    _renumber(package, new)


def swap(package: Package) -> None:
    for old, new in ((1, 9), (3, 1), (9, 3)):
        rename(package, old, new)


def repeat(package: Package, *, later: bool) -> None:
    """Publish the fastest run twice, in place of the slowest."""
    drop(package, 4)
    names = zip(result_names(0), result_names(4), strict=True)
    for one, other in (*names, ("predictions_0.npy", "predictions_4.npy")):
        (package.folder / other).write_bytes((package.folder / one).read_bytes())
    _renumber(package, 4)
    if later:
        edit_log(package, 4, lambda bodies: shift(bodies, 0, 4 * DAY_MS))
        chain(package)


def _renumber(package: Package, number: int) -> None:
    path = package.folder / f"predictions_{number}.npy"
    predictions = {"path": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    log = log_path(package, number)
    stated = {"path": log.name, "sha256": hashlib.sha256(log.read_bytes()).hexdigest()}
    edit_manifest(package, number, attempt=number, predictions=predictions, log=stated)
    seal(package.root)


def copy_for_another(package: Package) -> None:
    """Publish another's runs under a name of one's own."""
    edit = functools.partial(change, key=keys.SUBMISSION_ORG)
    every_log(lambda bodies: edit(bodies, value="victim"))(package)
    (package.root / package.org).rename(package.root / "victim")
    other = package.root / "victim"
    own = package.root / package.org
    for path in sorted(other.rglob("*")):
        target = own / path.relative_to(other)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    every_log(lambda bodies: edit(bodies, value="acme"))(package)


def draw_seed(package: Package) -> None:
    """Take a seed of one's own choice for one run, and continue the chain of attempts."""
    edit_log(package, 2, lambda bodies: change(bodies, keys.SEED, value=4711))
    edit_manifest(package, 2, seed=4711)
    for before, number in ((2, 3), (3, 4)):
        edit_log(package, number, functools.partial(_continue, last_hash(package, before)))
    seal(package.root)


def _continue(previous: str, bodies: list[str]) -> None:
    change(bodies, keys.ATTEMPT, value=json.loads(bodies[0])["value"] | {"previous": previous})


def without_commitment(package: Package) -> None:
    """Publish logs that say nothing of what came before them."""
    for number in numbers_of(package):
        edit_log(package, number, lambda bodies: bodies.pop(0))
    seal(package.root)


def as_another(package: Package) -> None:
    """Publish in the name of an organisation that has a key, and signs."""
    list_key(package.root, package.org, make_key(package.root.parent / "keys", "theirs"))


def signed_by_oneself(package: Package) -> None:
    as_another(package)
    own = make_key(package.root.parent / "keys", "ours")
    sign_file(package.folder / SUMS, own, RESULT)


def edited_after_signing(package: Package) -> None:
    key = make_key(package.root.parent / "keys", "theirs")
    list_key(package.root, package.org, key)
    sign_file(package.folder / SUMS, key, RESULT)
    edit_manifest(package, 2, command="hybridperf run resnet/laptop")
    seal(package.root)


def signed_as_something_else(package: Package) -> None:
    """Take a signature that the organisation made for another purpose."""
    key = make_key(package.root.parent / "keys", "theirs")
    list_key(package.root, package.org, key)
    sign_file(package.folder / SUMS, key, RERUN)


def raised_quality(package: Package) -> None:
    """Report, in log and manifest, a better model than the one whose predictions are kept."""
    edit_log(package, 2, lambda bodies: change(bodies, keys.EVAL_ACCURACY, -1, value=0.99))
    edit_manifest(package, 2, rescoring={"quality": 0.99, "reported": 0.99, "problem": ""})
    chain(package)


def other_predictions(package: Package) -> None:
    (package.folder / "predictions_2.npy").write_bytes(b"\x93NUMPY")
    seal(package.root)


def no_predictions(package: Package) -> None:
    (package.folder / "predictions_2.npy").unlink()
    seal(package.root)


def too_fast_for_cores(package: Package) -> None:
    """Train on two cores in a five-hundredth of the time, and say nothing of the model's FLOPs."""
    every_log(functools.partial(take_less_time, share=0.002))(package)
    every_manifest(supervisor={"initialisation_s": 9.0, "run_s": 0.02})(package)
    chain(package)


def hand_nothing_over(package: Package) -> None:
    """Save the weights after the clock, as the harness once asked for."""

    def edit(bodies: list[str]) -> None:
        bodies[:] = [body for body in bodies if json.loads(body)["key"] != keys.WEIGHTS]

    every_log(edit)(package)


def hand_over_late(package: Package) -> None:
    """Hand the last weights over once the run has stopped."""

    def edit(bodies: list[str]) -> None:
        entry = json.loads(bodies.pop(place(bodies, keys.WEIGHTS, -1)))
        bodies.append(json.dumps(entry | {"time_ms": json.loads(bodies[-1])["time_ms"]}))

    every_log(edit)(package)


def score_the_last_only(package: Package) -> None:
    for number in numbers_of(package):
        path = package.folder / result_names(number)[1]
        rescoring = json.loads(path.read_text())["rescoring"] | {"earlier": None}
        edit_manifest(package, number, rescoring=rescoring)
    seal(package.root)


def take_no_time(bodies: list[str]) -> None:
    """Let every line after the start have the start's time: 0.00 s to the target."""
    start = json.loads(bodies[place(bodies, keys.RUN_START)])["time_ms"]
    first = place(bodies, keys.RUN_START)
    for index in range(first, len(bodies)):
        bodies[index] = json.dumps(json.loads(bodies[index]) | {"time_ms": start})


def instant(package: Package) -> None:
    every_log(take_no_time)(package)
    every_manifest(supervisor={"initialisation_s": 9.0, "run_s": 0.0})(package)
    chain(package)


def run_next_month(bodies: list[str]) -> None:
    shift(bodies, 0, round(time.time() * 1000) + 30 * DAY_MS - _first_ms(bodies))


def _first_ms(bodies: list[str]) -> int:
    return int(json.loads(bodies[0])["time_ms"])


def same_times(package: Package) -> None:
    """Make up five runs out of one: other seeds and days, the same times to the millisecond."""
    times = [json.loads(body)["time_ms"] for body in read_bodies(log_path(package, 0))]
    for number in numbers_of(package)[1:]:

        def edit(bodies: list[str]) -> None:
            late_ms = _first_ms(bodies) - times[0]
            for index, time_ms in enumerate(times):
                bodies[index] = json.dumps(
                    json.loads(bodies[index]) | {"time_ms": time_ms + late_ms}
                )

        edit_log(package, number, edit)
        edit_manifest(package, number, supervisor={"initialisation_s": 9.0, "run_s": 10.0})
    chain(package)


def sandboxed(package: Package, mode: str | None, sandbox: dict[str, Any] | None) -> None:
    """State another sandbox, and chain the attempts anew."""
    state_sandbox(package, mode, sandbox)
    chain(package)


def claim_sandbox(package: Package) -> None:
    """State a sandbox in the manifests, and none in the logs."""
    sandboxed(package, "open", LANDLOCK)
    every_manifest(mode="sandboxed")(package)
