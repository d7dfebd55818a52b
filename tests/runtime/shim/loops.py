"""Small plain training loops: functions that know nothing of distribution and return the numbers they saw."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


@dataclass(frozen=True)
class Loop:
    """A loop and what must be seen of it on several ranks.

    Args:
        run: the script. batch: rows of its largest batch, as layers see them in one process; None: not in
        dim 0. share: the part of its module calls that must be split; a function of the number of ranks
        where it varies. trains: gradients must be exchanged.
    """

    run: Callable[[], list[float]]
    batch: int | None
    share: float | Callable[[int], float] = 1.0
    trains: bool = True

    def expected_share(self, ranks: int) -> float:
        return self.share(ranks) if callable(self.share) else self.share


def digits(*modules: nn.Module) -> list[float]:
    """Numbers that change when any parameter or buffer does."""
    state = [value.double() for module in modules for value in module.state_dict().values()]
    return [float(sum(value.sum() for value in state)), float(sum((value**2).sum() for value in state))]


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def labelled(samples: int = 24, features: int = 6, kinds: int = 3) -> TensorDataset:
    x = torch.randn(samples, features)
    return TensorDataset(x, (x[:, :kinds]).argmax(1))


def train(
    model: nn.Module, loss_of: Callable[..., Tensor], data: TensorDataset | None = None, epochs: int = 2
) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    seen: list[float] = []
    for _ in range(epochs):
        for batch in DataLoader(data or labelled(), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = loss_of(model, *batch)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    return seen + digits(model)


def loss_outside() -> list[float]:
    return train(mlp(6, 8, 3), lambda m, x, y: F.cross_entropy(m(x), y))


def loss_inside() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 8, 3)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            logits = self.body(x)
            return {"loss": F.cross_entropy(logits, y), "logits": logits}

    return train(Net(), lambda m, x, y: m(x, y)["loss"])


def sum_loss() -> list[float]:
    return train(mlp(6, 8, 3), lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"))


def sum_loss_inside() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 8, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.body(x), y, reduction="sum")

    return train(Net(), lambda m, x, y: m(x, y))


def class_weights() -> list[float]:
    weight = torch.tensor([0.2, 1.0, 3.0])
    return train(mlp(6, 8, 3), lambda m, x, y: F.cross_entropy(m(x), y, weight=weight))


def class_weights_inside() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 8, 3)
            self.loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]), label_smoothing=0.1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(self.body(x), y)

    return train(Net(), lambda m, x, y: m(x, y))


class Tokens(nn.Module):
    """A language model that ignores padded targets and shares its embedding with its output."""

    def __init__(self, *, recompute: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Sequential(mlp(8, 8, 8), nn.Dropout(drop))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.recompute = recompute

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embed(tokens)
        if self.recompute:
            hidden = torch.utils.checkpoint.checkpoint(self.body, hidden, use_reentrant=False)
        else:
            hidden = self.body(hidden)
        logits = self.head(hidden)
        return logits, F.cross_entropy(logits.view(-1, 11), targets.view(-1), ignore_index=-1)


def texts(samples: int = 24, length: int = 6) -> TensorDataset:
    tokens = torch.randint(11, (samples, length))
    targets = tokens.roll(-1, 1)
    targets[torch.rand(samples, length) < 0.4] = -1
    return TensorDataset(tokens, targets)


def ignore_index() -> list[float]:
    return train(Tokens(), lambda m, x, y: m(x, y)[1], texts())


def tied_and_recomputed() -> list[float]:
    return train(Tokens(recompute=True, drop=0.3), lambda m, x, y: m(x, y)[1], texts())


def contrastive() -> list[float]:
    def loss_of(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        first = F.normalize(model(x), dim=1)
        second = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(x)))

    return train(mlp(6, 8, 4), loss_of)


def gradient_penalty() -> list[float]:
    def loss_of(critic: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        score = critic(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()

    return train(mlp(6, 8, 1), loss_of)


def weights_in_loss() -> list[float]:
    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y) + 0.01 * sum((p**2).sum() for p in model.parameters())

    return train(mlp(6, 8, 3), loss_of)


def gan() -> list[float]:
    generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
    critic = mlp(6, 8, 1)
    by_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    by_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    seen: list[float] = []
    for x, _ in DataLoader(labelled(), batch_size=8, shuffle=True):
        fake = generator(torch.randn(len(x), 4))
        mix = torch.rand(len(x), 1)
        mixed = (mix * x + (1 - mix) * fake.detach()[torch.randperm(len(x))]).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake.detach()).mean() - critic(x).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
        by_critic.zero_grad()
        loss.backward()
        by_critic.step()
        generator.zero_grad()
        deceived = -critic(fake).mean()
        deceived.backward()
        by_generator.step()
        seen += [loss.item(), deceived.item()]
    return seen + digits(generator, critic)


def submodules() -> list[float]:
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(6, 8, 2), mlp(2, 8, 6)

    def loss_of(model: Coder, x: Tensor, _: Tensor) -> Tensor:
        code = model.encoder(x)
        return F.mse_loss(model.decoder(code), x) + 0.1 * code.std(0).mean()

    return train(Coder(), loss_of)


def teacher() -> list[float]:
    student = mlp(6, 8, 3)
    ahead = copy.deepcopy(student)

    def loss_of(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad():
            target = ahead(x + 0.1)
            for slow, fast in zip(ahead.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return F.mse_loss(model(x), target)

    return train(student, loss_of) + digits(ahead)


def lbfgs() -> list[float]:
    x, y = labelled().tensors
    model = mlp(6, 8, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    seen: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        seen.append(loss.item())
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return seen + digits(model)


def gradients_by_hand() -> list[float]:
    x, y = labelled().tensors
    model = mlp(6, 8, 3)
    seen: list[float] = []
    for _ in range(4):
        loss = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.1 * slope
        seen.append(loss.item())
    return seen + digits(model)


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((torch.randn(6), torch.randint(3, ())) for _ in range(20))


def iterable() -> list[float]:
    model = mlp(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[float] = []
    for x, y in DataLoader(Stream(), batch_size=8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen + digits(model)


def tail_of_one() -> list[float]:
    return train(mlp(6, 8, 3), lambda m, x, y: F.cross_entropy(m(x), y), labelled(17))


def plateau_and_stop() -> list[float]:
    data = labelled(40)
    held_out = labelled(20)
    model = mlp(6, 16, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    seen: list[float] = []
    best, waited = 0.0, 0
    for _ in range(12):
        model.train()
        right = 0
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            right += int((logits.argmax(1) == y).sum())
        model.eval()
        with torch.no_grad():
            value = F.cross_entropy(model(held_out.tensors[0]), held_out.tensors[1]).item()
        scheduler.step(value)
        seen += [right / len(data), value, optimizer.param_groups[0]["lr"]]
        waited = 0 if right > best else waited + 1
        best = max(best, right)
        if waited == 2:
            break
    return [*seen, *digits(model)]


def data_parallel() -> list[float]:
    return train(nn.DataParallel(mlp(6, 8, 3)), lambda m, x, y: F.cross_entropy(m(x), y))


def save_and_resume() -> list[float]:
    seen = train(model := mlp(6, 8, 3), lambda m, x, y: F.cross_entropy(m(x), y))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = mlp(6, 8, 3)
    fresh.load_state_dict(torch.load(file))
    return seen + train(fresh, lambda m, x, y: F.cross_entropy(m(x), y))


def lstm_state() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(5, 7, 2, batch_first=True), nn.Linear(7, 3)

        def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            hidden, state = self.rnn(x, state)
            return self.head(hidden), state

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = (torch.zeros(2, 8, 7), torch.zeros(2, 8, 7))
    seen: list[float] = []
    for _ in range(4):
        x = torch.randn(8, 4, 5)
        logits, state = model(x, tuple(s.detach() for s in state))
        loss = F.cross_entropy(logits.reshape(-1, 3), torch.randint(3, (32,)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        seen.append(loss.item())
    return [*seen, *digits(model), float(state[0].sum())]


def batch_norm() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norms, self.head = (
                nn.Conv2d(2, 4, 3, padding=1),
                nn.ModuleList(),
                nn.Linear(4, 3),
            )
            self.norms.append(nn.BatchNorm2d(4))
            self.norms.append(nn.BatchNorm2d(4, momentum=None))
            self.norms.append(nn.BatchNorm2d(4, affine=False))
            self.norms.append(nn.BatchNorm2d(4, track_running_stats=False))
            self.norms.append(nn.SyncBatchNorm(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for norm in self.norms:
                x = torch.tanh(norm(x)) + x
            return self.head(x.mean((2, 3)))

    data = TensorDataset(torch.randn(21, 2, 4, 4), torch.randint(3, (21,)))
    model = Net()
    seen = train(model, lambda m, x, y: F.cross_entropy(m(x), y), data)
    model.eval()
    with torch.no_grad():
        return [*seen, float(model(data.tensors[0]).sum())]


def clip_and_schedule() -> list[float]:
    model = mlp(6, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    seen: list[float] = []
    for _ in range(2):
        for x, y in DataLoader(labelled(), batch_size=8, shuffle=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            scheduler.step()
            seen += [loss.item(), norm.item(), float(scheduler.get_last_lr()[0])]
    return seen + digits(model)


def dropout() -> list[float]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = (
                nn.Linear(6, 8),
                nn.TransformerEncoder(layer, 2),
                nn.Linear(8, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.embed(x)).mean(1))

    data = TensorDataset(torch.randn(20, 5, 6), torch.randint(3, (20,)))
    return [*train(Net(), lambda m, x, y: F.cross_entropy(m(x), y), data), torch.rand(()).item()]


def variational() -> list[float]:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(6, 8, 4), mlp(2, 8, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, log_var = self.encoder(x).chunk(2, 1)
            return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_var).exp()), mean, log_var

    def loss_of(model: Vae, x: Tensor, _: Tensor) -> Tensor:
        output, mean, log_var = model(x)
        return F.mse_loss(output, x, reduction="sum") - 0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()

    model = Vae()
    seen = train(model, loss_of)
    model.eval()
    with torch.no_grad():
        return [*seen, float(model.decoder(torch.randn(5, 2)).sum())]


def batch_in_the_middle() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(6, 2), nn.Linear(6, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x, attn_mask=mask)[0])

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    length = 8  # the batch is as large: shapes alone cannot tell which dim holds the samples
    mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
    seen: list[float] = []
    for _ in range(3):
        logits = model(torch.randn(length, 8, 6), mask)
        loss = F.cross_entropy(logits.reshape(-1, 3), torch.randint(3, (length * 8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen + digits(model)


def lengths_vary() -> list[float]:
    model = Tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[float] = []
    for length in (3, 4, 5, 6, 7, 9, 10, 8):
        tokens, targets = texts(8, length).tensors
        optimizer.zero_grad()
        loss = model(tokens, targets)[1]
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen + digits(model)


def shared_input() -> list[float]:
    """One vector, computed by another module, is given to every sample."""
    style, body = mlp(4, 6), nn.Bilinear(6, 6, 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor, *, given: dict[str, Tensor]) -> Tensor:
            return self.body(x, given["style"].expand(len(x), -1).contiguous())

    model = Net()
    optimizer = torch.optim.SGD([*model.parameters(), *style.parameters()], lr=0.1)
    seen: list[float] = []
    for x, y in DataLoader(labelled(), batch_size=8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, given={"style": style(torch.ones(1, 4))}), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen + digits(model, style)


LOOPS = {
    loop.run.__name__: loop
    for loop in (
        Loop(loss_outside, 8),
        Loop(loss_inside, 8),
        Loop(sum_loss, 8),
        Loop(sum_loss_inside, 8),
        Loop(class_weights, 8),
        Loop(class_weights_inside, 8),
        Loop(ignore_index, 8),
        Loop(tied_and_recomputed, 8),
        Loop(contrastive, 8),
        Loop(gradient_penalty, 8),
        Loop(weights_in_loss, 8),
        Loop(gan, 8),
        Loop(submodules, 8),
        Loop(teacher, 8),
        Loop(lbfgs, 24),
        Loop(gradients_by_hand, 24),
        Loop(iterable, 8),
        Loop(tail_of_one, 8, 4 / 6),  # two of six batches hold a single sample
        Loop(plateau_and_stop, 20),
        Loop(data_parallel, 8),
        Loop(save_and_resume, 8),
        Loop(lstm_state, 8),
        Loop(batch_norm, 21),
        Loop(clip_and_schedule, 8),
        Loop(dropout, 8),
        Loop(variational, 8),
        Loop(batch_in_the_middle, None),
        Loop(lengths_vary, 8),
        Loop(shared_input, 8, 0.5),  # the style is computed from a single row
    )
}
