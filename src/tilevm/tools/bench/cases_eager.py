"""Code that nobody captures: lengths, branches and sizes that change with the data of every call.

Each case is plain PyTorch. `make()` gives a function and its calls: arguments, made before anything
is timed, over which the benchmark goes round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor
Calls = Sequence[tuple[Any, ...]]
Function = Callable[..., Any]
ROUND = 16  # calls of a round


@dataclass(frozen=True)
class EagerCase:
    """kind: "chain" or "program". grad: whether gradients are recorded; exact: equal bit by bit.

    many: operators of one call, where the time of one is of interest; 0: not.
    """

    name: str
    make: Callable[[], tuple[Function, Calls]]
    kind: str = "program"
    grad: bool = False
    many: int = 0


# Chains -----------------------------------------------------------------------------------------


def chain(x: Tensor, y: Tensor) -> Tensor:
    """20 operators, element by element."""
    for _ in range(5):
        x = torch.relu((x * y + y) - x)
    return x


def _chain(n: int) -> tuple[Function, Calls]:
    generator = torch.Generator().manual_seed(n)
    x, y = (torch.rand(n, n, generator=generator) for _ in range(2))
    return chain, [(x, y)]


def _chain_with_gradients() -> tuple[Function, Calls]:
    _, [(x, y)] = _chain(8)
    return chain, [(x.requires_grad_(), y)]


def _one() -> tuple[Function, Calls]:
    _, calls = _chain(8)
    return torch.mul, calls


def _chain_sizes() -> tuple[Function, Calls]:
    """The chain with other sizes each call: no compile depends on them."""
    drawn = random.Random(0)
    calls = []
    for _ in range(ROUND):
        x = torch.rand(drawn.randint(2, 200), drawn.randint(2, 200))
        calls.append((x, x + 1))
    return chain, calls


# Recurrence -------------------------------------------------------------------------------------


class TreeLstm(nn.Module):
    """Child-sum tree-LSTM; a tree is nested pairs of rows of the table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)
        self.gates = nn.Linear(2 * width, 3 * width)
        self.forget = nn.Linear(width, width)

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        """State and cell of the root."""
        if isinstance(tree, int):
            x = self.table.weight[tree]
            return torch.tanh(x), x
        states, cells = zip(*(self(child) for child in tree), strict=True)
        h = states[0] + states[1]
        i, o, u = self.gates(torch.cat([h, states[0]])).chunk(3)
        cell = torch.sigmoid(i) * torch.tanh(u)
        for state, child in zip(states, cells, strict=True):
            cell = cell + torch.sigmoid(self.forget(state)) * child
        return torch.sigmoid(o) * torch.tanh(cell), cell


def _tree(drawn: random.Random, leaves: int) -> Any:
    if leaves == 1:
        return drawn.randrange(1000)
    left = drawn.randint(1, leaves - 1)
    return _tree(drawn, left), _tree(drawn, leaves - left)


def _tree_lstm() -> tuple[Function, Calls]:
    torch.manual_seed(0)
    drawn = random.Random(0)
    return TreeLstm(64), [(_tree(drawn, drawn.randint(4, 12)),) for _ in range(ROUND)]


def _lengths(width: int) -> list[Tensor]:
    drawn = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(drawn.randint(3, 40), 4, width, generator=generator) for _ in range(ROUND)]


def _gru() -> tuple[Function, Calls]:
    torch.manual_seed(0)
    cell = nn.GRUCell(64, 64)

    def run(x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 64)
        for row in x:
            h = cell(row, h)
        return h

    return run, [(x,) for x in _lengths(64)]


def _lstm() -> tuple[Function, Calls]:
    """By hand; it ends early where the state no longer moves."""
    torch.manual_seed(0)
    gates = nn.Linear(128, 256)

    def run(x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1], 64)
        for t, row in enumerate(x):
            i, f, g, o = gates(torch.cat([row, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            new = torch.sigmoid(o) * torch.tanh(c)
            if t % 8 == 7 and (new - h).abs().max() < 1e-3:
                return new
            h = new
        return h

    return run, [(x,) for x in _lengths(64)]


# Sizes and branches that depend on data ---------------------------------------------------------


def _experts() -> tuple[Function, Calls]:
    torch.manual_seed(0)
    router = nn.Linear(64, 8)
    experts = nn.ModuleList(
        nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64)) for _ in range(8)
    )

    def run(x: Tensor) -> Tensor:
        weights, chosen = torch.softmax(router(x), -1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, slot = torch.where(chosen == number)
            if rows.numel():
                part = expert(x[rows]) * weights[rows, slot, None]
                result.index_add_(0, rows, part)
        return result

    drawn = random.Random(2)
    return run, [(torch.randn(drawn.randint(4, 64), 64),) for _ in range(ROUND)]


def _early_exit() -> tuple[Function, Calls]:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(12))
    head = nn.Linear(64, 10)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = x + F.gelu(layer(x))
            p = torch.softmax(head(x), -1)
            if p.amax(-1).min() > 0.25:
                return p
        return p

    drawn = random.Random(3)
    return run, [(torch.randn(drawn.randint(1, 9), 64) * drawn.random() * 3,) for _ in range(ROUND)]


def _beam() -> tuple[Function, Calls]:
    torch.manual_seed(0)
    table, cell, head = nn.Embedding(200, 64), nn.GRUCell(64, 64), nn.Linear(64, 200)
    beams = 4

    def run(start: Tensor, most: int) -> tuple[Tensor, Tensor]:
        h, tokens = start.expand(beams, -1), torch.zeros(beams, 1, dtype=torch.int64)
        scores = torch.tensor([0.0] + [-1e9] * (beams - 1))
        ended = torch.zeros(beams, dtype=torch.bool)
        for _ in range(most):
            h = cell(table(tokens[:, -1]), h)
            steps = torch.log_softmax(head(h), -1).masked_fill(ended[:, None], -1e9)
            steps[:, 0] = torch.where(ended, 0.0, steps[:, 0])
            scores, flat = (scores[:, None] + steps).flatten().topk(beams)
            origin = flat // 200
            tokens = torch.cat([tokens[origin], flat[:, None] % 200], 1)
            h, ended = h[origin], ended[origin] | (tokens[:, -1] == 0)
            if ended.all():
                break
        return tokens, scores

    drawn = random.Random(4)
    return run, [(torch.randn(1, 64), drawn.randint(4, 12)) for _ in range(ROUND)]


def _suppression() -> tuple[Function, Calls]:
    """Boxes that overlap a better one are dropped."""

    def run(boxes: Tensor, scores: Tensor) -> Tensor:
        order = scores.argsort(descending=True)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        kept = []
        while order.numel():
            best, order = order[0], order[1:]
            kept.append(best)
            low = torch.maximum(boxes[best, :2], boxes[order, :2])
            high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
            overlap = (high - low).clamp(min=0).prod(-1)
            order = order[overlap / (area[best] + area[order] - overlap) <= 0.5]
        return torch.stack(kept)

    drawn = random.Random(5)
    calls = []
    for _ in range(ROUND):
        corner = torch.rand(drawn.randint(10, 80), 2) * 4
        calls.append((torch.cat([corner, corner + 1], 1), torch.rand(len(corner))))
    return run, calls


def _segments() -> tuple[Function, Calls]:
    """Means of runs of rows, whose lengths and number are data."""

    def run(x: Tensor, of: Tensor) -> Tensor:
        count = int(of.max()) + 1
        sums = x.new_zeros(count, x.shape[1]).index_add(0, of, torch.relu(x))
        rows = torch.bincount(of, minlength=count)
        return torch.tanh(sums / rows.clamp(min=1)[:, None])

    drawn = random.Random(9)
    calls = []
    for _ in range(ROUND):
        lengths = torch.tensor([drawn.randint(1, 9) for _ in range(drawn.randint(2, 40))])
        of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        calls.append((torch.randn(len(of), 64), of))
    return run, calls


def _particles() -> tuple[Function, Calls]:
    def run(x: Tensor, seen: Tensor) -> Tensor:
        for y in seen:
            moved = x[:, 0] + 0.1 * x[:, 1] + 0.01 * torch.sin(x[:, 0])
            x = torch.stack([moved, 0.99 * x[:, 1] + 0.05 * torch.cos(x[:, 0])], 1)
            weights = torch.softmax(-0.5 * ((x[:, 0] - y) / 0.3) ** 2, 0)
            if 1 / weights.square().sum() < len(x) / 2:
                steps = torch.linspace(0, 1, len(x) + 1)[:-1]
                x = x[torch.searchsorted(weights.cumsum(0), steps).clamp(max=len(x) - 1)]
        return x.mean(0)

    drawn = random.Random(6)
    return run, [
        (torch.randn(drawn.randint(50, 500), 2), torch.randn(drawn.randint(2, 9)))
        for _ in range(ROUND)
    ]


# Training ---------------------------------------------------------------------------------------


def _policy() -> tuple[Function, Calls]:
    """A step of PPO: clipped ratio, value and entropy, gradients cut by norm, Adam."""
    torch.manual_seed(0)
    body, actor, critic = nn.Linear(16, 64), nn.Linear(64, 4), nn.Linear(64, 1)
    parameters = [p for m in (body, actor, critic) for p in m.parameters()]
    adam = torch.optim.Adam(parameters, 3e-4)

    def run(state: Tensor, action: Tensor, old: Tensor, gain: Tensor, value: Tensor) -> Tensor:
        adam.zero_grad()
        h = torch.tanh(body(state))
        logs = torch.log_softmax(actor(h), -1)
        ratio = (logs.gather(1, action[:, None])[:, 0] - old).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        error = (critic(h)[:, 0] - value).square().mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        loss: Tensor = policy + 0.5 * error - 0.01 * entropy
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 0.5)
        adam.step()
        return loss.detach()

    drawn = random.Random(7)
    calls = []
    for _ in range(ROUND):
        n = drawn.randint(16, 128)
        rest = (torch.randn(n) - 1.4, torch.randn(n), torch.randn(n))
        calls.append((torch.randn(n, 16), torch.randint(0, 4, (n,)), *rest))
    return run, calls


def _adam() -> tuple[Function, Calls]:
    """One step of Adam, one parameter after the other."""
    torch.manual_seed(0)
    sizes = [(64, 64), (64,), (256, 64), (256,), (64, 256), (64,)] * 6
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    adam = torch.optim.Adam(parameters, 1e-3, foreach=False)

    def run() -> Tensor:
        adam.step()
        return parameters[0].detach()

    return run, [()]


class Transformer(nn.Module):
    """Two layers, causal, as people write them."""

    def __init__(self, width: int = 64, words: int = 64) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, F.gelu, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        n = ids.shape[1]
        x = self.table(ids) + self.places.weight[:n]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(x)
        return logits


def _training() -> tuple[Function, Calls]:
    torch.manual_seed(0)
    model = Transformer()
    steps = torch.optim.AdamW(model.parameters(), 1e-3)

    def run(ids: Tensor) -> Tensor:
        steps.zero_grad()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
        return loss.detach()

    drawn = random.Random(8)
    calls = []
    for _ in range(ROUND):
        start = torch.randint(0, 64, (8, 1))
        calls.append(((start + 3 * torch.arange(drawn.randint(8, 32))) % 64,))
    return run, calls


def eager_cases() -> tuple[EagerCase, ...]:
    """All of them."""
    return (
        EagerCase("one_8", _one, "chain", many=1),
        *(EagerCase(f"chain_{n}", partial(_chain, n), "chain", many=20) for n in CHAINS),
        EagerCase("chain_8_grad", _chain_with_gradients, "chain", True, 20),
        EagerCase("chain_sizes", _chain_sizes, "chain", many=20),
        EagerCase("tree_lstm", _tree_lstm),
        EagerCase("gru", _gru),
        EagerCase("lstm_early_end", _lstm),
        EagerCase("early_exit", _early_exit),
        EagerCase("experts", _experts),
        EagerCase("beam_search", _beam),
        EagerCase("suppression", _suppression),
        EagerCase("segment_means", _segments),
        EagerCase("particles", _particles),
        EagerCase("policy_step", _policy, grad=True),
        EagerCase("adam", _adam),
        EagerCase(TRAINING, _training, grad=True),
    )


CHAINS = (8, 64, 128, 512, 1024)
TRAINING = "train_transformer"
