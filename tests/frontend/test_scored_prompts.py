"""`echo` with `logprobs`: a prompt comes back token by token, each once, however often and finely it was scored."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from services.frontend.generation import ScoredPrompt
from shared.manifest import encode
from shared.messages.common import TokenLogprobs
from shared.messages.frontend import Delta
from shared.messages.scheduler import Submit
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END, START, make_manifest, write_core
from tests.frontend.test_generation import word_vocabulary
from tests.frontend.test_refusals import check_error

SAID = (*b"hi", END)


@pytest.mark.parametrize("scored", [((1, 99),), ((1, 2), (2, 3), (3, 99)), ((1, 3), (1, 4), (2, 99))])
def test_the_prompt_comes_token_by_token(served: Deployment, scored: tuple[tuple[int, int], ...]) -> None:
    """Whole, in pieces, and told again from the start, as after a preemption."""
    served.scheduler.script = Script(SAID, scored=scored)
    prompt = list("aé!b".encode())
    answer = served.completions.both(prompt=prompt, echo=True, logprobs=2)
    tokens, scores, alternatives, offsets = zip(*answer.entries, strict=True)
    assert tokens == ("a", "bytes:\\xc3", "bytes:\\xa9", "!", "b", "h", "i", "<|im_end|>")
    assert (scores[0], alternatives[0]) == (None, None)
    assert scores[1:] == pytest.approx([-token / 1000 for token in (*prompt[1:], *SAID)])
    assert offsets == (0, 1, 1, 2, 3, 4, 5, 6)
    assert all(token in found for token, found in zip(tokens[1:], alternatives[1:], strict=True))
    assert (answer.text, answer.finish) == ("aé!bhi", "stop")
    assert answer.usage is not None
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (5, 3)
    assert all(submit.scored for submit in served.scheduler.of(Submit))


def test_what_the_tokenizer_puts_before_a_text_counts_no_characters() -> None:
    """A start token is in the prompt's list, but not in the text that is echoed."""
    prompt = ScoredPrompt((0, 1, 2, 3), word_vocabulary([b"<start>", b"a", b"b", b"c"]), -len("<start>"))
    scores = tuple(TokenLogprobs(logprob=-1.0) for _ in range(3))
    told = prompt.feed(Delta(request="r", epoch=1, start=0, tokens=(), scores=scores))
    assert [detail.offset for detail in told] == [0, 0, 1, 2]


@pytest.mark.parametrize("prompt", ["a", [START]])
def test_a_prompt_of_one_token_has_nothing_to_score(served: Deployment, prompt: Any) -> None:
    served.scheduler.script = Script(SAID, scored=())
    answer = served.completions.both(prompt=prompt, echo=True, logprobs=0)
    assert [entry[1] for entry in answer.entries] == [None, *(pytest.approx(-token / 1000) for token in SAID)]


def test_no_tokens_give_the_prompt_alone(served: Deployment) -> None:
    """What the device draws nonetheless is acknowledged, so that the scheduler lets go of it, and never shown."""
    served.scheduler.script = Script(tuple(b"hello"))
    answer = served.completions.both(prompt="abc", echo=True, logprobs=1, max_tokens=0)
    assert [entry[0] for entry in answer.entries] == ["a", "b", "c"]
    assert (answer.text, answer.finish) == ("abc", "length")
    assert answer.usage is not None
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (3, 0)
    assert {submit.max_tokens for submit in served.scheduler.of(Submit)} == {1}
    for submit in served.scheduler.of(Submit):
        assert served.scheduler.safe(submit.request, 1)[-1].upto == 1
    plain = served.completions.both(prompt="abc", echo=True, max_tokens=0)
    assert (plain.text, plain.entries) == ("abc", [])


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"echo": False}])
def test_no_tokens_need_an_echo(served: Deployment, fields: dict[str, Any]) -> None:
    check_error(served.completions.post(max_tokens=0, **fields), 400, param="max_tokens")
    assert served.scheduler.of(Submit) == []


def test_logprobs_alone_do_not_score_the_prompt(served: Deployment) -> None:
    served.completions.both(prompt="abc", logprobs=1, max_tokens=3)
    served.completions.both(prompt="abc", echo=True, max_tokens=3)
    assert not any(submit.scored for submit in served.scheduler.of(Submit))


@pytest.mark.parametrize("scored", [(), ((1, 3),), ((2, 99),), ((3, 99), (1, 99))])
def test_missing_scores_end_the_request(served: Deployment, scored: tuple[tuple[int, int], ...]) -> None:
    served.scheduler.script = Script(SAID, scored=scored)
    check_error(served.completions.post(prompt="abcd", echo=True, logprobs=1), 500)
    served.scheduler.script = Script(SAID)
    assert served.completions.whole(prompt="abcd", echo=True, logprobs=1).text == "abcdhi"


def test_a_core_without_such_graphs_says_so(tmp_path: Path) -> None:
    folder, run_dir = tmp_path / "core", tmp_path / "run"
    folder.mkdir()
    run_dir.mkdir()
    write_core(folder)
    manifest = encode(make_manifest(scores=False))
    (folder / "manifest.json").write_bytes(manifest)
    with deploy((folder, hashlib.sha256(manifest).hexdigest()), run_dir) as served:
        check_error(served.completions.post(echo=True, logprobs=1), 400, "unsupported_parameter", "echo")
        assert served.completions.both(echo=True, max_tokens=5).text == "hihello"
