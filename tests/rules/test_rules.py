from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

import hybridperf.rules
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Severity
from hybridperf.log.package import find_results, read_result
from hybridperf.rules.check import check_path, check_result
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset
from hybridperf.rules.rule import RULES
from hybridperf.rules.verdict import RULESET, Verdict
from tests.packages import edit_log, log_path, place, read_bodies, seal, write_result
from tests.rules.mutation import RUN, Mutation
from tests.rules.mutations import MUTATIONS

_RULESET = Path(hybridperf.rules.__file__).parent / "rulesets" / f"{RULESET}.toml"


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("valid")
    write_result(root)
    return root


@pytest.fixture
def copy(valid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(valid, tmp_path / "copy"))


def _rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


@pytest.mark.parametrize("plan", ["dp=1", "dp=2", "dp=2,pp=2,schedule=gpipe,microbatches=4"])
def test_a_valid_result_has_no_findings(tmp_path: Path, plan: str) -> None:
    write_result(tmp_path, plan=plan)

    verdict = check_path(tmp_path)

    assert verdict.findings == ()
    assert verdict.valid
    assert len(verdict.logs) == 5


def test_one_miss_and_more_runs_than_asked_for_are_valid(tmp_path: Path) -> None:
    write_result(tmp_path, times_s=[10.0] * 6, missed=[3])

    assert check_path(tmp_path).findings == ()


def test_an_attempt_that_was_ended_is_a_warning(tmp_path: Path) -> None:
    write_result(tmp_path, times_s=[10.0] * 6, ended=[3])

    verdict = check_path(tmp_path)

    (finding,) = verdict.findings
    assert finding.rule == "result.ended"
    assert finding.severity is Severity.WARNING
    assert finding.found == "1 interrupted"
    assert verdict.valid


def test_what_the_closed_division_may_change_is_valid(tmp_path: Path) -> None:
    allowed: dict[str, object] = {"optimizer.lr": 0.05, "training.global_batch_size": 64}
    write_result(tmp_path, overrides=allowed)

    assert check_path(tmp_path).findings == ()


def test_the_open_division_may_change_any_hyperparameter(tmp_path: Path) -> None:
    write_result(tmp_path / "open", overrides={"optimizer.momentum": 0.5}, division="open")
    write_result(tmp_path / "closed", overrides={"optimizer.momentum": 0.5})

    assert check_path(tmp_path / "open").findings == ()
    assert _rules(check_path(tmp_path / "closed")) == {"run.hyperparameters"}


@pytest.mark.parametrize(
    "plan",
    [
        "dp=2,gradients=bf16",
        "dp=2,gradients=powersgd",
        "pp=2,schedule=1f1b,microbatches=2,links=topk",
    ],
)
def test_a_plan_that_computes_something_else_is_of_the_open_division(
    tmp_path: Path, plan: str
) -> None:
    write_result(tmp_path / "open", plan=plan, division="open")
    write_result(tmp_path / "closed", plan=plan)

    assert check_path(tmp_path / "open").findings == ()
    verdict = check_path(tmp_path / "closed")
    assert _rules(verdict) == {"run.plan"}
    assert not verdict.valid
    assert verdict.findings[0].sentence.endswith(
        "expected a plan that computes what one process does, in the closed division, found "
        f"{plan.split(',')[-1]}; train under a plan without it, or enter the open division."
    )


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_change_is_found_by_exactly_the_named_rules(copy: Path, mutation: Mutation) -> None:
    (package,) = find_results(copy)
    mutation.apply(package)
    seal(copy)  # as whoever makes the change can

    verdict = check_path(copy)

    assert _rules(verdict) == mutation.rules
    assert verdict.valid is (mutation.rules == {"result.ended"})
    for finding in verdict.findings:
        assert finding.sentence.isprintable()
        assert finding.sentence.endswith((".", "?"))
        assert finding.path
    if mutation.at is not None:
        line = place(_readable(log_path(package, RUN)), *mutation.at) + 1
        lines = [each.line for each in verdict.findings if each.rule == mutation.first_rule]
        assert lines[0] == line


def _readable(path: Path) -> list[str]:
    return [body.replace('"value": NaN', '"value": 0') for body in read_bodies(path)]


def test_no_two_mutations_share_a_name() -> None:
    names = [mutation.name for mutation in MUTATIONS]

    assert len(set(names)) == len(names)


def test_every_rule_finds_some_mutation() -> None:
    found = {rule for mutation in MUTATIONS for rule in mutation.rules}

    ours = {name for name in load_ruleset(RULESET).rules if RULES[name].scope != "submission"}
    assert ours - found == set()


def test_the_rulesets_name_every_rule_and_no_other() -> None:
    ruleset = tomllib.loads(_RULESET.read_text())
    names = [name for name in known_rulesets() if name != RULESET]
    of_rounds = {rule for name in names for rule in load_ruleset(name).rules}

    assert set(ruleset["rules"]) | of_rounds == set(RULES)
    assert ruleset["name"] == RULESET == _RULESET.stem


def test_a_log_is_checked_on_its_own(valid: Path) -> None:
    (package,) = find_results(valid)

    verdict = check_path(log_path(package, RUN))

    assert verdict.findings == ()
    assert verdict.logs == (str(log_path(package, RUN)),)


def test_every_result_below_a_folder_is_checked(tmp_path: Path) -> None:
    for org in ("acme", "other"):
        write_result(tmp_path, org=org)
    (tmp_path / "other" / "systems" / "laptop.json").unlink()

    verdict = check_path(tmp_path)

    assert len(verdict.logs) == 10
    assert [finding.path for finding in verdict.findings] == ["other/results/laptop/resnet-laptop"]


def test_a_path_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text("")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything

    for check in (check_path, lambda path: check_path(path, "mlperf-training-2.1.0", "strict")):
        with pytest.raises(UserError, match="no permission") as refusal:
            check(log)
        assert refusal.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.parametrize(("name", "found"), [("absent", "no such file"), (".", "no results")])
def test_nothing_to_check_is_refused(tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_path(tmp_path / name)

    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert found in str(refusal.value)


def test_the_json_contract_of_a_verdict(copy: Path) -> None:
    (package,) = find_results(copy)
    (package.folder / "result_2.json").unlink()

    table = check_path(copy).as_json()

    assert set(table) == {
        "version", "valid", "ruleset", "mode", "counts", "results", "logs", "findings",
    }  # fmt: skip
    assert (table["version"], table["valid"]) == (4, False)
    results = table["results"]
    assert isinstance(results, list)
    result = results[0]
    assert (result["judgement"], result["logs"], result["valid_logs"]) == ("broken", 5, 4)
    logs = table["logs"]
    assert isinstance(logs, list)
    assert [log["valid"] for log in logs] == [True, True, False, True, True]


def test_a_result_without_runs_has_no_findings_of_its_own(copy: Path) -> None:
    (package,) = find_results(copy)
    for path in package.folder.iterdir():
        path.unlink()

    assert check_result(read_result(package)) == []


@pytest.mark.parametrize(
    "text",
    ["null", "[]", '{"a": {"b": []}}', '"\\u202e\\u001b"', "-1", "12345678901234567890", "true"],
)
def test_hostile_values_are_findings_and_no_traceback(copy: Path, text: str) -> None:
    def replace(bodies: list[str]) -> None:
        for index, body in enumerate(bodies):
            if "submission_" not in body:
                bodies[index] = json.dumps(json.loads(body) | {"value": json.loads(text)})

    (package,) = find_results(copy)
    edit_log(package, RUN, replace)

    verdict = check_path(copy)

    assert not verdict.valid
    assert {"run.task", "run.target", "run.hyperparameters"} <= _rules(verdict)
    assert all(finding.sentence.isprintable() for finding in verdict.findings)
