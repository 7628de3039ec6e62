"""Plans that nobody chose: each run of the tests draws others."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hybridperf.plan import ParallelPlan
from tests.engine.families import FAMILIES

RANKS = 4
BUDGET = 8


@st.composite
def items(draw: st.DrawFn) -> str:
    """Draw a family and a plan of four ranks, as ``vit:dp=2,tp=2``; it need not fit."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    axes = draw(st.sampled_from(_AXES))
    choices = {
        "microbatches": ["1", "2", "4"],
        "recompute": ["none", "none", "full", "2"],
        "precision": ["fp32", "fp32", "fp32", "bf16"],
        "bn": ["micro", "deferred", "sync"] if FAMILIES[family].batch_norm else ["micro"],
    }
    if "pp" in axes:
        choices["cut"] = ["minimax", "minimax", "uniform", "parameters", "ampa"]
        choices["schedule"] = ["gpipe", "1f1b", "interleaved", "zbv"]
    if "tp" in axes:
        choices["sp"] = ["off", "on"]
    if axes == "tp=4":
        choices["tensor"] = ["1d", "2d", "2d"]
    words = [axes, *(f"{key}={draw(st.sampled_from(some))}" for key, some in choices.items())]
    if "dp" in axes:
        words.append(draw(st.sampled_from(_REPLICAS)))
    return f"{family}:{ParallelPlan.parse(','.join(words))}"


_AXES = [
    *("dp=4", "pp=4", "tp=4", "cp=4", "dp=2,pp=2", "dp=2,tp=2", "pp=2,tp=2"),
    *("dp=2,cp=2", "pp=2,cp=2", "cp=2,tp=2"),
]
_REPLICAS = [
    *("zero=0", "sync=blocking", "zero=1", "zero=2", "zero=3"),
    *("zero=1,shard=2", "zero=1,offload=cpu", "zero=3,offload=cpu"),
]


def drawn() -> list[str]:
    """Return the last `BUDGET` of what hypothesis comes up with: it begins with the simplest."""
    fitting = dict[str, None]()

    @settings(max_examples=150, phases=[Phase.generate], database=None, deadline=None)
    @given(items())
    def collect(item: str) -> None:
        family, _, text = item.partition(":")
        if FAMILIES[family].takes(ParallelPlan.parse(text)):
            fitting[item] = None

    collect()
    return list(fitting)[-BUDGET:]
