"""``hybridperf doctor``: diagnose what this machine lacks, with remedies."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridperf.cli.options import add_format, add_nodes
from hybridperf.cli.printing import print_json, print_line
from hybridperf.errors import ExitCode
from hybridperf.projection.network import node_sent_bytes
from hybridperf.run import child
from hybridperf.run.ending import explain_crash
from hybridperf.run.launcher import rank_command
from hybridperf.run.nodes import Nodes
from hybridperf.system.accelerators import usable_devices
from hybridperf.system.doctor import Diagnosis, diagnose
from hybridperf.untrusted import parse_object

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from hybridperf.projection.network import Algorithm

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf doctor
srun --nodes=2 --ntasks-per-node=1 hybridperf doctor --nodes 2 --rendezvous node0:29500"""

_MODULE: Final = "hybridperf_reference.all_reduce"
_MB: Final = 1e6

_MARKS = {"ok": "ok      ", "missing": "MISSING ", "optional": "optional"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf doctor``."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        help="folder for the results of runs (default: runs)",
    )
    add_nodes(parser, "machines, each of which is given the same command: measure all-reduces")
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print every diagnosis; exit status 4 if a requirement is missing."""
    nodes = Nodes.named(options.nodes, options.node_rank, options.rendezvous)
    found = diagnose(options.out)
    if nodes.count > 1:
        found += _examine_nodes(nodes)
    if options.format == "json":
        print_json([dataclasses.asdict(each) for each in found])
    else:
        for each in found:
            remedy = "" if each.status == "ok" else f" -> {each.remedy}"
            print_line(f"{_MARKS[each.status]}  {each.name}: {each.detail}{remedy}")
    missing = any(each.status == "missing" for each in found)
    return ExitCode.ENVIRONMENT if missing else ExitCode.OK


def _examine_nodes(nodes: Nodes) -> Iterator[Diagnosis]:
    """Measure all-reduces over all ``nodes``, of which node 0 states the findings.

    Each accelerator of a node has a rank; without accelerators, a node has two.
    """
    devices = usable_devices()
    ranks = devices.count if devices.kind == "gpu" else 2
    address = f"{nodes.host}:{nodes.port}"
    trainer = _MODULE.partition(".")[0]
    command = rank_command(trainer, [_MODULE], ranks, nodes.rank, nodes.count, address)
    done = subprocess.run(
        [sys.executable, "-m", child.__name__, *command.module],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": "1", **os.environ, **command.environment},
        check=False,
    )
    if done.returncode:
        cause = explain_crash(done.stderr, done.returncode)
        remedy = "Give the same command on every node; name the interface as docs/clusters.md says."
        yield Diagnosis("all-reduce", "missing", cause, remedy)
    elif nodes.rank == 0:
        yield from _describe_all_reduces(parse_object(done.stdout.strip().rpartition("\n")[2]))


def _describe_all_reduces(found: dict[str, Any]) -> Iterator[Diagnosis]:
    """Yield the order of ranks and the measured all-reduces."""
    places, message_bytes = found["places"], found["message_bytes"]
    share = node_sent_bytes(1.0, places, "ring") / node_sent_bytes(1.0, sorted(places), "ring")
    order = "neighbours share a node" if share == 1 else f"a ring leaves each node {share:g} times"
    remedy = "" if share == 1 else "Number the ranks of a node one after another."
    yield Diagnosis("order of ranks", "ok" if share == 1 else "optional", order, remedy)
    algorithms: dict[str, Algorithm] = {"flat": "ring", "hierarchical": "hierarchical"}
    for name, algorithm in algorithms.items():
        seconds, sent = found[name]["seconds"], found[name]["sent_bytes"]
        expected = node_sent_bytes(message_bytes, places, algorithm) / _MB
        counted = "not counted" if sent is None else f"{sent / _MB:,.1f} MB"
        yield Diagnosis(
            f"{name} all-reduce",
            "ok",
            f"{message_bytes / _MB:,.1f} MB over {len(places)} ranks in {seconds * 1e3:,.1f} ms; "
            f"sent by a node: {counted}, {expected:,.1f} MB by the formula",
        )
