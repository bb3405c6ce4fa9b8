"""Prompts of the benches: distinct ordinary questions, and texts to be returned with one word changed."""

from __future__ import annotations

from typing import Any

_TOPICS = (
    "tides", "bread", "glaciers", "bicycles", "bees", "paper", "volcanoes", "clocks", "rivers", "chess", "salt", "owls",
    "bridges", "rainbows", "silk", "lighthouses", "cheese", "deserts", "violins", "maps", "coral", "trains", "snow",
)  # fmt: skip
_SENTENCES = (
    "The {0} team met on Monday to plan the next release of the garden catalogue.",
    "Each {0} box holds twelve jars, four spoons and a folded sheet with instructions.",
    "Anyone who visits the {0} office should sign the book at the front desk first.",
    "The old {0} road crosses the river twice before it reaches the market square.",
    "In spring the {0} fields turn yellow, and the village holds a fair with music.",
    "Please send the {0} report to the manager, the editor and the two assistants.",
)


def chat(count: int, tokens: int, first: int = 0) -> list[dict[str, Any]]:
    """Ordinary questions, all distinct, at the core's own sampling defaults; those from number `first` on."""
    ask = "Explain in a few paragraphs what is remarkable about {}."
    return [_body(ask.format(_topic(i)), tokens, i) for i in range(first, first + count)]


def copying(count: int, tokens: int) -> list[dict[str, Any]]:
    """Texts to be returned with one word changed, all distinct."""
    bodies = []
    for i in range(count):
        text = " ".join(sentence.format(_topic(i)) for sentence in _SENTENCES)
        ask = f"Rewrite this text, but replace the word Monday with Friday. Return only the text.\n\n{text}"
        bodies.append({**_body(ask, tokens, i), "temperature": 0})
    return bodies


def _topic(index: int) -> str:
    lap, place = divmod(index, len(_TOPICS))
    return _TOPICS[place] if not lap else f"{_TOPICS[place]} number {lap + 1}"


def _body(content: str, tokens: int, seed: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "seed": seed}
