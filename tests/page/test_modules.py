"""The page's modules that need no server: events however they are cut, counts, bars, and text as spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from services.scheduler.frontend_side import Condition
from tests.frontend.conftest import Deployment
from tests.page.conftest import url_of

STREAM = ': a comment\n\ndata: {"a": 1}\r\n\r\nid: 7\ndata: é\ndata:second\r\rdata: [DONE]\n\ndata: torn'
EVENTS = ['{"a": 1}', "é\nsecond", "[DONE]"]

READ = """async ([bytes, cuts]) => {
  const { readEvents } = await import("/page/events.js");
  const found = [];
  for (const size of cuts) {
    const stream = new ReadableStream({ start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(new Uint8Array(bytes.slice(at, at + size)));
      controller.close();
    } });
    const events = [];
    for await (const event of readEvents(stream)) events.push(event);
    found.push(events);
  }
  return found;
}"""

COUNT = """async (chunks) => {
  const { Tally } = await import("/page/tally.js");
  const tally = new Tally(1000);
  for (const [now, sources] of chunks) tally.add(sources.map((source) => ({ text: "x", source })), now);
  const { tokens, counts, rounds, firstAfter, rate, perRound } = tally;
  return { tokens, counts, rounds, firstAfter, rate, perRound };
}"""

BARS = """async (rounds) => (await import("/page/chart.js")).bars(rounds)"""

WRITE = """async (tokens) => {
  const { AnswerText } = await import("/page/answer.js");
  const root = document.createElement("div");
  const answer = new AnswerText(root);
  answer.add(tokens);
  answer.close();
  const blocks = [...root.children].map((block) => [block.className, block.textContent]);
  const marks = [...root.querySelectorAll(".token")].map((span) => [span.className, span.title, span.textContent]);
  const shown = [...root.querySelectorAll(".line:not(.fence)")].map((line) => [line.className,
    [...line.children].filter((span) => !span.classList.contains("mark")).map((span) => span.textContent).join(""),
    [...line.querySelectorAll(".mark")].map((span) => span.textContent).join("")]);
  const kinds = Object.fromEntries(["strong", "em", "literal", "bullet"].map((kind) => [kind,
    [...root.querySelectorAll(`.${kind}`)].map((span) => span.textContent).join("")]));
  const languages = [...root.querySelectorAll("pre")].map((block) => block.dataset.language ?? null);
  return { text: answer.text, pieces: answer.pieces, blocks, marks, shown, kinds, languages };
}"""

DRAW = """async (rounds) => {
  const { drawRounds } = await import("/page/chart.js");
  const svg = document.getElementById("chart");
  drawRounds(svg, rounds);
  const middle = (one) => { const { left, width } = one.getBoundingClientRect(); return left + width / 2; };
  const bars = [...svg.querySelectorAll("rect")];
  const label = svg.querySelector(".last");
  const pitch = bars[0].getBoundingClientRect().width + 1;
  return { off: Math.abs(middle(label) - middle(bars.at(-1))) / pitch, last: label.textContent,
    unit: svg.querySelector(".unit").textContent, said: svg.getAttribute("aria-label"), bars: bars.length };
}"""

SPEAK = """async (steps) => {
  const { Speech } = await import("/page/speech.js");
  const region = document.createElement("p");
  const speech = new Speech(region);
  speech.begin(0);
  return steps.map(([text, now]) => { speech.follow(text, now); return region.textContent; });
}"""


@pytest.fixture(scope="module")
def evaluate(deployment: Deployment, browser: Browser) -> Iterator[Any]:
    """Runs a function in the page, where its modules can be imported."""
    page = browser.new_page()
    page.goto(url_of(deployment))
    yield page.evaluate
    page.close()


def test_events_survive_every_cut(evaluate: Any) -> None:
    data = STREAM.encode()
    found = evaluate(READ, [list(data), list(range(1, len(data) + 1))])
    assert found == [EVENTS] * len(data)


def test_a_round_ends_with_the_token_that_the_model_drew(evaluate: Any) -> None:
    found = evaluate(
        COUNT,
        [[1200, ["sampled"]], [1300, ["prompt", "prompt", "sampled", "learned"]], [1700, ["sampled", "history"]]],
    )
    assert found["tokens"] == 7
    assert found["counts"] == {"sampled": 3, "prompt": 2, "learned": 1, "history": 1}
    assert [{source: n for source, n in one.items() if n} for one in found["rounds"]] == [
        {"sampled": 1},
        {"prompt": 2, "sampled": 1},
        {"learned": 1, "sampled": 1},
        {"history": 1},
    ]
    assert (found["firstAfter"], found["rate"], found["perRound"]) == (200, 12, 7 / 4)


def test_a_speed_is_known_even_if_all_came_at_once(evaluate: Any) -> None:
    chunks = [[1500, ["prompt", "sampled"]]]
    assert evaluate(COUNT, chunks)["rate"] is None
    assert evaluate(COUNT.replace("const { tokens,", "tally.over = true; const { tokens,"), chunks)["rate"] == 4


def test_tokens_of_unknown_source_count_but_make_no_rounds(evaluate: Any) -> None:
    found = evaluate(COUNT, [[1100, [None]], [1100, []], [1600, [None]]])
    assert (found["tokens"], found["rounds"], found["rate"], found["perRound"]) == (2, [], 2, None)


def test_a_long_answer_shares_bars_and_keeps_its_mean(evaluate: Any) -> None:
    rounds = [{"prompt": n % 4, "history": 0, "learned": 0, "sampled": 1} for n in range(400)]
    bars = evaluate(BARS, rounds)
    assert 40 <= len(bars) <= 60
    mean = sum(bar["prompt"] for bar in bars) / len(bars)
    assert mean == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("count", [2, 8, 40])
def test_the_last_round_is_named_under_its_bar(evaluate: Any, count: int) -> None:
    found = evaluate(DRAW, [{"prompt": 0, "history": 0, "learned": 0, "sampled": 1}] * count)
    assert (found["last"], found["unit"]) == (str(count), "rounds")
    assert found["off"] < 1


def test_bars_that_rounds_share_say_so(evaluate: Any) -> None:
    found = evaluate(DRAW, [{"prompt": 1, "history": 0, "learned": 0, "sampled": 1}] * 130)
    assert (found["last"], found["unit"]) == ("130", "each bar: 3 rounds, mean")
    assert found["bars"] == 2 * 44
    assert found["said"] == "260 tokens in 130 rounds; each bar is the mean of 3 rounds"


MARKDOWN = (
    """# Title\n**bold** and *soft* and `a * b`\n- one **two**\n2 * 3 * 4, x**2 + y**2, f*g*h, ** no **, `open\n"""
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_markdown_is_shown_however_its_tokens_fall(evaluate: Any, size: int) -> None:
    pieces = [MARKDOWN[at : at + size] for at in range(0, len(MARKDOWN), size)]
    sources = ["prompt", "sampled"]
    found = evaluate(WRITE, [{"text": text, "source": sources[n % 2]} for n, text in enumerate(pieces)])
    assert found["text"] == MARKDOWN == "".join(text for text, _ in found["pieces"])
    assert found["blocks"] == [["prose", MARKDOWN]]
    assert found["shown"] == [
        ["line heading", "Title\n", "# "],
        ["line plain", "bold and soft and a * b\n", "******``"],
        ["line item", "- one two\n", "****"],
        ["line plain", MARKDOWN.splitlines(keepends=True)[-1], ""],
    ]
    assert found["kinds"] == {"strong": "boldtwo", "em": "soft", "literal": "a * b", "bullet": "-"}
    assert "".join(mark[2] for mark in found["marks"]) == "".join(pieces[::2])


def test_a_wicked_line_is_laid_out_in_time_and_loses_nothing(evaluate: Any) -> None:
    wicked = "**a `b *c " * 400
    found = evaluate(WRITE, [{"text": wicked[at : at + 4], "source": "sampled"} for at in range(0, len(wicked), 4)])
    assert found["text"] == wicked == found["blocks"][0][1]


def test_each_source_is_marked_and_says_what_it_means(evaluate: Any) -> None:
    sources = ["sampled", "learned", "history", "prompt", None]
    found = evaluate(WRITE, [{"text": f"{source} ", "source": source} for source in sources])
    assert found["text"] == "sampled learned history prompt None "
    assert [mark[0] for mark in found["marks"]] == ["token learned", "token history", "token prompt"]
    assert len({mark[1] for mark in found["marks"]} - {""}) == 3


def test_fenced_code_is_set_apart_and_no_character_is_lost(evaluate: Any) -> None:
    pieces = ["See:\n\n``", "`py", "thon\nif a < b:\n", "    pass\n", "``", "`\n", "Done `x` ", "```\nopen"]
    found = evaluate(WRITE, [{"text": piece, "source": "sampled"} for piece in pieces])
    assert found["text"] == "".join(pieces)
    assert found["blocks"] == [
        ["prose", "See:\n\n"],
        ["code", "```python\nif a < b:\n    pass\n```\n"],
        ["prose", "Done `x` ```\nopen"],
    ]
    assert found["languages"] == ["python"]
    assert found["shown"][-3:] == [
        ["line plain", "    pass\n", ""],
        ["line plain", "Done x ```\n", "``"],
        ["line plain", "open", ""],
    ]


def test_an_unfinished_fence_at_the_end_is_code(evaluate: Any) -> None:
    found = evaluate(WRITE, [{"text": "```", "source": "sampled"}])
    assert found["blocks"] == [["code", "```"]]


def test_a_loading_server_is_told_in_sentences(evaluate: Any) -> None:
    told = evaluate(
        """async (reasons) => reasons.map((await import("/page/faults.js")).notReady)""",
        [Condition().reason, "the moon is full"],
    )
    assert "loading the model" in told[0]
    assert told[1] == "The server is not ready: the moon is full."


def test_speech_tells_whole_sentences_and_not_each_token(evaluate: Any) -> None:
    heard = evaluate(
        SPEAK,
        [["One is. Tw", 100], ["One is. Two ar", 2600], ["One is. Two are. Th", 2700], ["One is. Two are. Th", 5200]],
    )
    assert heard == ["Answering.", "One is.", "One is.", " Two are."]
