"""Secrets planted wherever a run could pick them up: none stands in any file that is published."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from hybridperf.report.page import build_report
from tests.run.conftest import Bench, bench

__all__ = ["bench"]

#: in variables of the environment, by name
ENVIRONMENT: Final = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYPLANTED01",
    "HF_TOKEN": "hf_PLANTEDqWeRtYuIoP02",
    "WANDB_API_KEY": "0303aabbccddeeff00112233445566778899aabb",
    "GITHUB_TOKEN": "ghp_PLANTED04abcdefghijklmnopqrstu",
    "OPENAI_API_KEY": "sk-PLANTED05abcdefghij",
    "DATABASE_PASSWORD": "planted06-correct-horse",
    "MY_CREDENTIALS": "planted07-staple-battery",
    "SESSION_COOKIE": "planted08-oatmeal-raisin",
    "SSH_AUTH_SOCK": "/tmp/ssh-planted09/agent.1",
    "VAULT_AUTH": "planted10.s.abcdef",
    "LOGNAME": "planted11wilhelmina",
    "SUDO_USER": "planted12quokka",
    "SLURM_JOB_ACCOUNT": "planted13-project",
    "OMP_PROC_BIND": "planted14-close",
    "NCCL_DEBUG": "planted15-info",
    "KMP_BLOCKTIME": "planted16",
    "MKL_DYNAMIC": "planted17",
    "PYTORCH_CUDA_ALLOC_CONF": "planted18:1",
    "HTTPS_PROXY": "http://planted19:pw@10.7.7.7:3128",
    "HYBRIDPERF_DATA": "/srv/planted20/imagenet",
}
#: in the configuration of git, as the address of a remote
REMOTES: Final = (
    "https://planted21:ghp_PLANTED22aaaaaaaaaaaaaa@git.planted23.example/suite.git",
    "ssh://planted24@planted25.internal/suite.git",
    "/srv/planted26/suite.git",
)
#: in the text of an exception, a few at a time: what is published of one is cut off
EXCEPTIONS: Final = (
    "/home/planted27/weights.pt AKIAPLANTED28ABCDEF0 hf_PLANTED29abcdef planted30@example.com",
    "10.31.31.31 fe80::32ff:fe32:3232:3232 aa:bb:cc:dd:33:33 0000:34:00.0",
    "https://planted35.example/x?token=1 planted36secret password=planted37 bearer planted38",
    "41414141-3939-4111-8111-123456789abc 404040404040404040404040404040ab sk-PLANTED41abcdefgh",
    "github_pat_PLANTED42abcdefgh",
    "C:\\Users\\planted43 \\\\planted44\\share ~/planted45 nfs://planted46/x",
    "eyJPLANTED47hbGciOiJ api_key=planted48 private_key=planted49 credential=planted50",
    "cannot login as planted57 serial planted58 key=planted59 pwd=planted60 auth=planted61",
    "AccountKey=planted62 sig=planted63 xoxb-planted64 glpat-planted65abcd npm_planted66abcdefgh",
    "dop_v1_planted67 AIzaPLANTED68abcdefgh user: planted69 logged in as planted70",
)
#: what an exception says that no pattern tells from a sentence: published only if asked for
SENTENCES: Final = "wilfred planted71 of planted72avenue met planted73"
#: in names of folders: of the results, of temporary files, of the user, of a module's path
FOLDERS: Final = ("planted51-out", "planted52-tmp", "planted53-home", "planted54-modules")
#: in arguments of the command: folders that no result needs to name
ARGUMENTS: Final = ("planted55-data", "planted56-more")

#: what is looked for: a part of every secret, in lower case
MARKS: Final = (
    *(f"planted{nth:02}" for nth in range(1, 74) if nth not in {2, 3, *range(31, 35), 39, 40}),
    *("wjalrxutnfemi", "plantedqwertyuio", "0303aabbccdd", "correct-horse", "10.7.7.7"),
    *("10.31.31.31", "fe80::32ff", "aa:bb:cc:dd:33:33", "0000:34:00.0", "3939-4111"),
    *("4040404040", "git.planted23", "staple-battery"),
)


def test_sixty_secrets_are_planted() -> None:
    texts = [*REMOTES, *EXCEPTIONS, SENTENCES, *FOLDERS, *ARGUMENTS]
    planted = " ".join([*ENVIRONMENT.values(), *texts]).lower()

    assert [mark for mark in MARKS if mark not in planted] == []
    assert len(set(MARKS)) >= 60


@pytest.fixture
def published(bench: Bench, tmp_path: Path) -> tuple[Bench, dict[str, Any]]:
    """A bench among secrets, and the variables of its commands."""
    folders = [tmp_path / name for name in (*FOLDERS, *ARGUMENTS)]
    for folder in folders:
        folder.mkdir()
    bench.out, bench.server = folders[0] / "out", None
    git = {"GIT_CONFIG_COUNT": str(len(REMOTES))}
    for number, address in enumerate(REMOTES):
        git[f"GIT_CONFIG_KEY_{number}"] = f"remote.planted{number}.url"
        git[f"GIT_CONFIG_VALUE_{number}"] = address
    places: dict[str, Any] = {"TMPDIR": str(folders[1]), "HOME": str(folders[2])}
    return bench, ENVIRONMENT | git | places


def _published(folder: Path) -> dict[Path, bytes]:
    """Return what others get: every file but the hidden ones, of the harness's own work."""
    return {
        path: path.read_bytes().lower()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.parts[-2:])
    }


def test_none_of_sixty_planted_secrets_is_published(
    published: tuple[Bench, dict[str, Any]], tmp_path: Path
) -> None:
    bench, variables = published
    data = ("--data-dir", str(tmp_path / ARGUMENTS[0]))
    for text in EXCEPTIONS:
        told = variables | {"VICTIM": text}
        crashed = bench.strike("tell secrets", "--publish-errors", *data, **told)
        assert crashed.code == 4, crashed
    assert bench.strike("tell secrets", *data, **(variables | {"VICTIM": SENTENCES})).code == 4
    assert bench.run(*data, **variables).code == 0

    build_report(bench.out, bench.out / "report")
    files = _published(bench.out)

    assert bench.outcomes() == [*["crashed"] * (len(EXCEPTIONS) + 1), "success"]
    assert len(files) > 2 * len(EXCEPTIONS)
    found = {
        (path.name, mark)
        for path, content in files.items()
        for mark in MARKS
        if mark.encode() in content
    }
    assert found == set()


def test_the_remotes_are_ones_that_git_knows(published: tuple[Bench, dict[str, Any]]) -> None:
    _, variables = published
    path = {"PATH": "/usr/bin:/bin:/usr/local/bin"}

    said = subprocess.run(
        ["git", "config", "--get-regexp", "remote"],
        env=path | variables,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )

    assert all(address in said.stdout for address in REMOTES)
