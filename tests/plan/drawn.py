"""Plans drawn by hypothesis, whether they fit anything or not."""

from __future__ import annotations

from hypothesis import strategies as st

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.plan.fields import FIELDS, LARGEST_NUMBER, Field


def _values(field: Field) -> st.SearchStrategy[object]:
    """Draw what a plan may hold in ``field``."""
    named = st.sampled_from([field.default, *field.words.values()])
    numbers = st.integers(field.metadata.minimum, 9) | st.integers(
        field.metadata.minimum, LARGEST_NUMBER
    )
    if field.takes_series:
        return named | st.sets(numbers, min_size=1, max_size=9).map(sorted).map(tuple)
    return named | numbers if field.takes_numbers else named


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    """Draw a plan, whether it fits anything or not."""
    values = {name: draw(_values(field)) for name, field in FIELDS.items()}
    if values["pp"] == 1:
        values |= {"schedule": None, "stages": 1}
    else:
        schedule = draw(st.sampled_from(sorted(SCHEDULES)))
        stages = SCHEDULES[schedule].stages
        if SCHEDULES[schedule].stages_vary:
            stages = draw(st.integers(2, LARGEST_NUMBER))
        values |= {"schedule": schedule, "stages": stages}
    if values["zero"] and values["shard"] == values["dp"]:
        values["shard"] = None
    if values["cuts"]:
        values["cut"] = FIELDS["cut"].default
    return ParallelPlan(**values)  # type: ignore[arg-type]  # drawn from what they may be
