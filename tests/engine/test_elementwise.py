from __future__ import annotations

import torch

from hybridperf_reference.engine.optim import AdamW


def test_a_loaded_step_count_is_on_the_device_of_its_parameter() -> None:
    """Checkpoints come by way of the host; meta stands for a device that is not the host."""
    weight = torch.nn.Linear(2, 3, bias=False, device="meta").weight
    optimizer = AdamW([{"params": [weight]}], lr=0.1, betas=(0.9, 0.99), epsilon=1e-8)
    moments = {name: torch.zeros(3, 2, device="meta") for name in ("exp_avg", "exp_avg_sq")}
    groups = optimizer.state_dict()["param_groups"]

    optimizer.load_state_dict(
        {"state": {0: {"step": torch.tensor(5.0)} | moments}, "param_groups": groups}
    )

    assert optimizer.state[weight]["step"].device == weight.device
