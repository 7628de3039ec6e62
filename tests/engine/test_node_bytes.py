"""Bytes that a node sends, on the interface between two nodes, are those of the formulas."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.network import Network, NetworkLink, node_sent_bytes
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.traffic import Stages, replica_node_bytes
from hybridperf_reference.units import unit_table
from studies.slow_links.shaped_link import ADDRESSES, INTERFACE, ShapedLink, why_no_shaped_link
from tests.engine.node_bytes_worlds import FAMILY
from tests.run.conftest import ROOT

WITHIN = 0.06  #: headers, and what else ranks tell each other
STEPS = 3
#: nodes of the ranks, plan, algorithm of the all-reduce; without one, the plan is projected only
CASES: dict[str, tuple[list[int], str, Any]] = {
    "flat": ([0, 0, 1, 1], "dp=4", "ring"),
    "alternating": ([0, 1, 0, 1], "dp=4", "ring"),
    "hierarchical": ([0, 0, 1, 1], "dp=4,baidu(node=2)", "hierarchical"),
    "sharded over all": ([0, 0, 1, 1], "dp=4,zero=1", None),
    "a pipeline in each node": ([0, 0, 1, 1], "dp=2,pp=2,order=dp-pp-tp", None),
}
LINK = NetworkLink(0.0, 1e9)
GLOO = Network(2, LINK, LINK, "gloo")
needs_link = pytest.mark.skipif(
    bool(reason := why_no_shaped_link()), reason=f"no link between two namespaces: {reason}"
)


def on_two_nodes(*arguments: str) -> list[str]:
    """Return what ``python ARGUMENTS`` prints on each of two nodes; NODE is the node's number."""
    own = {
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "MASTER_ADDR": ADDRESSES[0],
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    # Its own /sys: another one shows the interfaces of this process.
    shell = 'mount -t sysfs none /sys && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", shell, "sh", sys.executable]
    with ShapedLink() as link:
        nodes = [
            subprocess.Popen(
                link.command(
                    node, *words, *(str(node) if each == "NODE" else each for each in arguments)
                ),
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | own,
            )
            for node in range(2)
        ]
        printed = [node.communicate()[0] for node in nodes]
    assert all(node.returncode in {0, 4} for node in nodes), printed
    return printed


@needs_link
@pytest.mark.exhaustive
def test_a_node_sends_as_many_bytes_in_training_as_the_formulas_say() -> None:
    cases = [
        {
            "ranks": [[rank for rank in range(4) if places[rank] == node] for node in range(2)],
            "plan": plan,
            "port": 29500 + number,
        }
        for number, (places, plan, _) in enumerate(CASES.values())
    ]

    for text in on_two_nodes("-m", "tests.engine.node_bytes_worlds", "NODE", json.dumps(cases)):
        for (name, (places, plan, algorithm)), line in zip(
            CASES.items(), text.splitlines(), strict=True
        ):
            found = json.loads(line)
            if algorithm is not None:
                formula = STEPS * node_sent_bytes(found["gradients"], places, algorithm)
                assert found["sent"] == pytest.approx(formula, rel=WITHIN), name
            if places == sorted(places):  # as the projection has them
                projected = STEPS * _projected_bytes(ParallelPlan.parse(plan))
                assert found["sent"] == pytest.approx(projected, rel=WITHIN), name


def _projected_bytes(plan: ParallelPlan) -> float:
    """Return the bytes that node 0 is projected to send in a step."""
    table = unit_table(FAMILY.task())
    return replica_node_bytes(Stages(plan, table, stage_cuts(plan, table.units)), GLOO)


@needs_link
def test_the_doctor_measures_all_reduces_over_nodes() -> None:
    program = "import sys; from hybridperf.cli import main; sys.exit(main(sys.argv[1:]))"
    where = ["--nodes", "2", "--node-rank", "NODE", "--rendezvous", f"{ADDRESSES[0]}:29500"]

    first, other = map(json.loads, on_two_nodes("-c", program, "doctor", *where, "--json"))

    found = {each["name"]: each for each in first}
    assert found.keys() - {each["name"] for each in other} == {
        *("order of ranks", "flat all-reduce", "hierarchical all-reduce"),
    }
    assert found["order of ranks"]["detail"] == "neighbours share a node"
    for name, expected in (("flat", 1.5 * 2**26), ("hierarchical", 2**26)):
        detail = found[f"{name} all-reduce"]["detail"]
        message, counted, formula = (
            float(count.replace(",", "")) * 1e6 for count in re.findall(r"([\d,.]+) MB", detail)
        )
        assert message == pytest.approx(2**26, rel=0.01)
        assert formula == pytest.approx(expected, rel=0.01)
        assert counted == pytest.approx(expected, rel=WITHIN)


def test_the_formulas_count_how_often_a_ring_leaves_a_node() -> None:
    assert node_sent_bytes(1.0, [0, 0, 1, 1], "ring") == 1.5
    assert node_sent_bytes(1.0, [0, 1, 0, 1], "ring") == 3.0
    assert node_sent_bytes(1.0, [0, 0, 1, 1], "hierarchical") == 1.0
    assert node_sent_bytes(1.0, [0, 0, 0], "ring") == node_sent_bytes(1.0, [0], "ring") == 0.0
