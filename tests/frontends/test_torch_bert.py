"""A BERT of the size of MiniLM, random weights, through both doors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilevm  # noqa: E402


def model(attention: str, layers: int = 2) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=384, num_hidden_layers=layers, num_attention_heads=12,
        intermediate_size=1536, attn_implementation=attention,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def inputs(batch: int, length: int) -> dict[str, Any]:
    torch.manual_seed(length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 + 1 :] = 0
    return {"input_ids": torch.randint(0, 1000, (batch, length)), "attention_mask": mask}


def error(got: Any, want: Any, exact: Any) -> None:
    ours = (got.double() - exact).abs().max().item()
    eager = (want.double() - exact).abs().max().item()
    assert ours <= 1.5 * eager + 2 * torch.finfo(got.dtype).eps * exact.abs().max().item()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("door", ["tilevm", "torch"])
def test_bert(attention: str, door: str) -> None:
    torch._dynamo.reset()
    tilevm.stats.reset()
    eager = model(attention)
    exact = model(attention).double()
    compiled = (
        tilevm.compile(eager)
        if door == "tilevm"
        else torch.compile(eager, backend="tilevm", dynamic=True)
    )
    with torch.no_grad():
        for batch, length in [(2, 9), (3, 13), (4, 64), (2, 30)]:
            given = inputs(batch, length)
            got, want, truth = compiled(**given), eager(**given), exact(**given)
            assert type(got) is type(want)
            error(got.last_hidden_state, want.last_hidden_state, truth.last_hidden_state)
            error(got.pooler_output, want.pooler_output, truth.pooler_output)
    stats = tilevm.stats()
    assert stats["captures"] == 1
    assert not stats["flushes"]
    if door == "tilevm":
        assert not compiled.explain(**inputs(2, 9)).callouts
        with torch.no_grad():
            for batch, length in [(1, 30), (1, 2), (5, 3)]:
                given = inputs(batch, length)
                torch.testing.assert_close(
                    compiled(**given).pooler_output, eager(**given).pooler_output
                )
        assert tilevm.stats()["captures"] == 1
