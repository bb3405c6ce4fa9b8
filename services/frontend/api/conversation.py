"""Messages of a request as turns for the chat template. Pure; frontend process.

Content may be a string, also an empty one, or a list of at least one text part. The parts are joined by one line end
between each two, as vLLM does, so they are the same prompt as that one string, in every role. Text stays text: one that
looks like JSON is not read. Whatever else a message may carry is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.frontend import template
from services.frontend.api.schema import Part, Turn
from shared.errors import InvalidRequest, NotBuilt

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role to the one that templates know."""
_ROLES_LATER = frozenset({"tool", "function"})
_PARTS_LATER = frozenset(
    {"image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "refusal", "thinking"}
)
_EMPTY = frozenset({b"", b"null", b"[]"})
_FIELDS_LATER = (
    "refusal", "tool_calls", "tool_call_id", "function_call", "audio", "annotations", "reasoning", "reasoning_content",
)  # fmt: skip


def _part(part: Part, path: str) -> str:
    if part.type in _PARTS_LATER:
        raise NotBuilt("this version takes text parts only", param=f"{path}.type")
    if part.type != "text":
        raise InvalidRequest("the type of a content part must be text", param=f"{path}.type")
    if part.text is None:
        raise InvalidRequest("a text part needs text", param=f"{path}.text")
    return part.text


def _content(turn: Turn, path: str) -> str:
    if turn.content is None:
        raise InvalidRequest("content must be a string or a list of text parts", param=f"{path}.content")
    if isinstance(turn.content, str):
        return turn.content
    if not turn.content:
        raise InvalidRequest("content needs at least one part", param=f"{path}.content")
    return "\n".join(_part(part, f"{path}.content[{i}]") for i, part in enumerate(turn.content))


def _turn(turn: Turn, path: str) -> template.Message:
    if turn.role in _ROLES_LATER:
        raise NotBuilt("messages of tools are known, but this version does not serve them yet", param=f"{path}.role")
    if turn.role not in ROLES:
        raise InvalidRequest(f"role must be one of {', '.join(ROLES)}", param=f"{path}.role")
    for name in _FIELDS_LATER:
        if bytes(getattr(turn, name)).strip() not in _EMPTY:
            raise NotBuilt(f"{name} is known, but this version does not serve it yet", param=f"{path}.{name}")
    found = {"role": ROLES[turn.role], "content": _content(turn, path)}
    if turn.name is not None:
        found["name"] = turn.name
    return found


def turns(messages: Sequence[Turn]) -> list[template.Message]:
    """The conversation. Raises `InvalidRequest` or `NotBuilt` with the path of what is wrong."""
    if not messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    return [_turn(turn, f"messages[{index}]") for index, turn in enumerate(messages)]
