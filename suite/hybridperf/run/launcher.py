"""Start the processes of a run on this machine: its ranks, or its predictor.

No other module knows how ranks are launched: `rank_command` selects the launcher.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.run import child, local_ranks
from hybridperf.run.channel import CHANNEL_VARIABLE
from hybridperf.run.files import Scratch
from hybridperf.run.provenance import top_folder
from hybridperf.run.sandbox import clean_environment, policy_of
from hybridperf.run.spec import NODE_VARIABLE, RUN_VARIABLE
from hybridperf.system.host import probe_processor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hybridperf.run.spec import RunSpec

__all__ = [
    "RankCommand",
    "bytecode_folder",
    "child_environment",
    "launch",
    "predictor_environment",
    "python_command",
    "rank_command",
]


@dataclass(frozen=True, slots=True)
class RankCommand:
    """The command that starts the ranks of one node."""

    module: list[str]  #: name of a Python module, followed by its arguments
    environment: Mapping[str, str] = field(default_factory=dict)


def rank_command(
    trainer: str,
    module: list[str],
    ranks: int,
    node: int = 0,
    nodes: int = 1,
    address: str = "",
) -> RankCommand:
    """Return the command that runs ``module``, with its arguments, on ``ranks`` ranks of ``node``.

    Rank 0 of several nodes listens at ``address``. A rank that is alone needs no `local_ranks`.
    """
    if ranks == nodes == 1:
        # any free port: no other rank connects to the store
        return RankCommand(module, local_ranks.rank_environment(0, 1, "127.0.0.1:0"))
    place = [str(ranks), str(node), str(nodes), address]
    return RankCommand([local_ranks.__name__, *place, trainer, *module])


def launch(
    spec: RunSpec, channel: str, scratch: Path | None = None, node: int = 0
) -> subprocess.Popen[bytes]:
    """Start all ranks of the run ``spec`` on ``node``, which is this machine.

    ``channel`` is where they find the harness, and ``scratch`` the folder for their temporary
    files if they run in a sandbox.
    """
    nodes, place = spec.rank_nodes, channel.partition("@")[2]
    ranks, group = spec.parallel_plan().ranks // len(nodes), nodes.index(node)
    module = [f"{spec.trainer}.train"]
    command = rank_command(spec.trainer, module, ranks, group, len(nodes), spec.rendezvous)
    command = dataclasses.replace(
        command, environment={**command.environment, CHANNEL_VARIABLE: channel}
    )
    with spec.output_of(node).open("ab") as output:
        return subprocess.Popen(
            python_command(spec, child.__name__, *command.module),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(
                spec,
                command,
                ranks,
                scratch,
                node=node,
                writable=(spec.work,),
                readable=(
                    *((Path(place),) if place.startswith("/") else ()),
                    *((Path(spec.initial.real_path),) if spec.initial else ()),
                ),
            ),
            cwd=scratch if spec.sandboxed else None,  # the harness's may not be readable
            start_new_session=True,  # Ctrl-C reaches only the harness, which ends all ranks
        )


def child_environment(
    spec: RunSpec,
    command: RankCommand,
    ranks: int,
    scratch: Path | None,
    *,
    node: int = 0,
    writable: Iterable[Path] = (),
    readable: Iterable[Path] = (),
) -> dict[str, str]:
    """Return the variables of the process that carries out ``command`` of ``ranks`` ranks here.

    Where it runs in a sandbox, they name its policy. It may then write to ``writable`` and the
    folder ``scratch``, beside which is the file of the policy, and read ``readable`` too.
    """
    environment = _environment(spec, command.environment, ranks, node)
    if not spec.sandboxed or scratch is None:
        return environment
    policy = policy_of(
        spec,
        writable=(*writable, scratch),
        readable=(*readable, bytecode_folder()),
        ranks=ranks,
    )
    own = {child.SANDBOX_VARIABLE: str(policy.write(scratch.parent))}
    return clean_environment(environment, scratch) | own


def python_command(spec: RunSpec, module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module``; in a sandbox, isolated from the user's settings."""
    python = [sys.executable, "-X", f"pycache_prefix={bytecode_folder()}"]
    if not spec.sandboxed:
        return [*python, "-m", module, *arguments]
    # In the harness's own order, so that both run the same code; but its first place, the folder
    # that it was started in or by, may hold files with names of modules.
    first, *others = [path or str(Path.cwd()) for path in sys.path]
    places = [*others, first, str(top_folder(spec.trainer).parent)]
    start = f"import sys; sys.path[:] = {places!r}; from {module} import main; main()"
    return [*python, "-I", "-c", start, *arguments]


@functools.cache
def bytecode_folder() -> Path:
    """Return where processes of this command find what Python compiled; it ends with the command.

    It begins empty, since a file beside a source may hold other code than that. Only processes
    outside of the sandbox write to it.
    """
    temporary = Scratch()
    atexit.register(temporary.close)
    folder = temporary.path / "bytecode"
    folder.mkdir()
    return folder


def predictor_environment(spec: RunSpec, scratch: Path) -> dict[str, str]:
    """Return the environment variables of predictors, which may use all cores."""
    environment = _environment(spec, {}, ranks=1, node=0)
    return clean_environment(environment, scratch) if spec.sandboxed else environment


def _environment(spec: RunSpec, own: Mapping[str, str], ranks: int, node: int) -> dict[str, str]:
    threads = max(1, probe_processor()["usable_cores"] // ranks)
    # On one machine use the loopback interface: the host name need not resolve.
    alone = {"GLOO_SOCKET_IFNAME": "lo"} if spec.nodes == 1 else {}
    return {
        "OMP_NUM_THREADS": str(threads),
        **alone,
        **os.environ,
        **own,
        RUN_VARIABLE: str(spec.path),
        NODE_VARIABLE: f"{node} {os.getpid()}",
        child.PARENT_VARIABLE: str(os.getpid()),
        "PYTHONPYCACHEPREFIX": str(bytecode_folder()),  # of what these processes start
    }
