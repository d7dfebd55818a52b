"""Values outside of the model that differ between the ranks stop the run; other leaves get their gradient."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from ...pool import Ranks
from .harness import plain


def unseeded_targets() -> float:
    model, x = nn.Linear(4, 1), torch.randn(16, 4)
    y = torch.from_numpy(np.random.default_rng().normal(size=(16, 1)))
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    return loss.item()


def learning_rate_by_chance() -> float:
    model, x = nn.Linear(4, 1), torch.randn(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(np.random.default_rng().random()))
    model(x).mean().backward()
    optimizer.step()
    return optimizer.param_groups[0]["lr"]


def prompt_gradient() -> list[float]:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(x + prompt))

    model, x, prompt = Prompted(), torch.randn(16, 4), torch.zeros(4, requires_grad=True)
    (model(x, prompt) ** 2).mean().backward()
    assert prompt.grad is not None
    return prompt.grad.tolist()


def hidden_layer() -> list[float]:
    hidden = nn.Linear(4, 4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 1)
            self.layers = [hidden]  # a plain list: its parameters are not the module's

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.tanh(self.layers[0](x)))

    model, x = Net(), torch.randn(16, 4)
    (model(x) ** 2).mean().backward()
    assert hidden.weight.grad is not None
    return hidden.weight.grad.flatten().tolist()


@pytest.mark.parametrize(
    ("script", "what"),
    [(unseeded_targets, "a loss differs"), (learning_rate_by_chance, "an option of an optimizer.* differs")],
)
def test_what_differs_outside_of_the_model_is_refused(
    ranks: Ranks, script: Callable[[], object], what: str
) -> None:
    with pytest.raises(Exception, match=what):
        ranks(2, plain, script)


@pytest.mark.parametrize("script", [prompt_gradient, hidden_layer])
def test_leaves_that_are_no_parameters_get_the_whole_gradient(
    ranks: Ranks, script: Callable[[], object]
) -> None:
    (alone,) = ranks(1, plain, script)
    for one in ranks(2, plain, script):
        assert one.value == pytest.approx(alone.value, rel=1e-9)
