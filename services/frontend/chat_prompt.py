"""A conversation as token ids: template, marks and both forms of the tokenizer together. Frontend, worker threads.

If no string of the client could touch a control token, the rendered text is encoded as a whole. Else the spans that
could are marked while the template renders, and what stands between marks stays text, whatever it says (cases.md, B28).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.frontend.control_tokens import Span
from services.frontend.marks import Marks, Piece, unused
from services.frontend.template import ChatTemplate, Message
from services.frontend.tokenization import Tokenization
from shared.errors import InvalidRequest

_TEXTS = ("content", "name")
"""What of a message is the client's own words. A role is one of ours."""


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a conversation ends, and what else the template is told; `options` were checked."""

    add_generation_prompt: bool
    continue_final_message: bool
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ChatPrompts:
    """Makes the prompts of one core. Read-only."""

    template: ChatTemplate
    tokenization: Tokenization

    def encode(self, turns: Sequence[Message], form: PromptForm) -> list[int]:
        """The ids of a conversation. Raises `InvalidRequest`."""
        for name, value in form.options.items():
            if isinstance(value, str) and self.tokenization.controls.touches(value):
                raise InvalidRequest("this is text of a control token", param=f"chat_template_kwargs.{name}")
        strings = [turn[name] for turn in turns for name in _TEXTS if name in turn]
        spans = [self.tokenization.spans(string) for string in strings]
        if any(spans):
            return self.tokenization.encode_pieces(self._pieces(turns, strings, spans, form))
        (end,) = unused(strings, 1) if form.continue_final_message else ("",)
        return self.tokenization.encode(self._render(turns, form, end))

    def _render(self, turns: Sequence[Message], form: PromptForm, end: str) -> str:
        if form.continue_final_message:
            return self.template.render_open(turns, end, options=form.options)
        return self.template.render(turns, add_generation_prompt=form.add_generation_prompt, options=form.options)

    def _pieces(
        self, turns: Sequence[Message], strings: list[str], spans: list[list[Span]], form: PromptForm
    ) -> list[Piece]:
        """The rendered prompt in pieces, those of the client told from the template's.

        Some templates look for a literal in an answer that comes back, to take the reasoning before `</think>` out, and
        tear the marks from it: such a literal is then left as it was, if the template's own control tokens stay the
        same and so none of the client's came through.
        """
        options = [value for value in form.options.values() if isinstance(value, str)]
        *alphabet, end = unused([*strings, *options], Marks.CHARACTERS + 1)
        marks = Marks(alphabet, sum(map(len, spans)), self.template.sought)
        pieces, tears = marks.cut(self._render(_marked(turns, spans, marks), form, end))
        if not tears:
            return pieces
        # A template that cuts by length may leave a literal and take its mark; one that splits at it takes both.
        kept = [tear for tear in tears if any(True for _ in self.tokenization.controls.find(tear.left))]
        if all(marks.texts[tear.span] in marks.sought for tear in kept):
            second = replace(marks, spared=frozenset(tear.span for tear in tears), texts=[])
            again, others = second.cut(self._render(_marked(turns, spans, second), form, end))
            if not others and self._controls(again) == self._controls(pieces):
                return again
        if kept:
            reason = "the chat template takes a message apart in the text of a control token"
            raise InvalidRequest(reason, param="messages")
        return pieces

    def _controls(self, pieces: Sequence[Piece]) -> list[str]:
        """The control tokens that are not the client's."""
        find = self.tokenization.controls.find
        return [piece.text[start:end] for piece in pieces if not piece.client for start, end in find(piece.text)]


def _marked(turns: Sequence[Message], spans: Sequence[Sequence[Span]], marks: Marks) -> list[Message]:
    """The conversation with marks; `spans` are those of each text in order."""
    order = iter(spans)
    return [
        {**turn, **{name: marks.wrap(turn[name], next(order)) for name in _TEXTS if name in turn}} for turn in turns
    ]
