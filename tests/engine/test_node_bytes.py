"""Bytes that a node sends in a step, on the interface between two nodes, are those of the formulas.

For S bytes of gradients on N nodes of l ranks each: a ring of n = N l ranks sends 2 (n - 1) / n S
over each of its links, and leaves a node once where neighbours are on one node, l times where they
alternate. Reduced in the node first, 2 (N - 1) / N S leave it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from studies.slow_links.shaped_link import ADDRESSES, INTERFACE, ShapedLink, why_no_shaped_link
from tests.run.conftest import ROOT

WITHIN = 0.06  #: headers, and what else ranks tell each other
STEPS = 3
NEIGHBOURS, ALTERNATING = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
CASES = {
    "flat": (NEIGHBOURS, "dp=4", 2 * 3 / 4),
    "alternating": (ALTERNATING, "dp=4", 2 * 2 * 3 / 4),
    "hierarchical": (NEIGHBOURS, "dp=4,baidu(node=2)", 2 * 1 / 2),
}


@pytest.mark.skipif(
    bool(reason := why_no_shaped_link()), reason=f"no link between two namespaces: {reason}"
)
@pytest.mark.exhaustive
def test_a_node_sends_as_many_bytes_as_the_formulas_say() -> None:
    cases = [
        {"ranks": ranks, "plan": plan, "port": 29500 + number}
        for number, (ranks, plan, _) in enumerate(CASES.values())
    ]
    own = {
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "MASTER_ADDR": ADDRESSES[0],
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    # Its own /sys: another one shows the interfaces of this process.
    shell = 'mount -t sysfs none /sys && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", shell, "sh", sys.executable, "-m"]
    words += ["tests.engine.node_bytes_worlds"]
    with ShapedLink() as link:
        nodes = [
            subprocess.Popen(
                link.command(node, *words, str(node), json.dumps(cases)),
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | own,
            )
            for node in range(2)
        ]
        printed = [node.communicate()[0] for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0]
    for text in printed:
        for (name, (_, _, share)), line in zip(CASES.items(), text.splitlines(), strict=True):
            found = json.loads(line)
            expected = share * STEPS * found["gradients"]
            assert found["sent"] == pytest.approx(expected, rel=WITHIN), name
