"""What the frontend reads of a core, once, off the event loop: manifest, tokenizer, vocabulary bytes, chat template.

Read-only after loading; rendering and encoding run in worker threads of the frontend process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from services.frontend.template import ChatTemplate, Message, read_template
from services.frontend.vocabulary import Vocabulary, read_vocabulary
from shared import manifest
from shared.errors import InvalidRequest, ProcessError
from shared.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Core:
    """The tokenizing side of a core. `digest` is SHA-256 of manifest.json, as the scheduler tells it."""

    manifest: Manifest
    digest: str
    model: str
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    template: ChatTemplate

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.manifest.geometry.context_length

    def encode_chat(self, turns: Sequence[Message]) -> tuple[int, ...]:
        """The prompt of a conversation as token ids. Blocking. Raises `InvalidRequest`."""
        ids: list[int] = self.tokenizer.encode(self.template.render(turns), add_special_tokens=False).ids
        if not ids:
            raise InvalidRequest("these messages make an empty prompt", param="messages")
        if max(ids) >= self.manifest.geometry.vocab_size:
            raise InvalidRequest("the prompt has a token that the model does not know", param="messages")
        return tuple(ids)


def load_core(folder: Path, served_model_name: str | None) -> Core:
    """Reads a core folder. Blocking. Raises `ProcessError` and `ManifestError`."""
    # One request is one thread already; the library's own pool would only compete with the worker for cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    found = manifest.read(folder)
    path = folder / "tokenizer.json"
    try:
        definition = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(definition)
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise ProcessError(f"cannot read {path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Core(
        manifest=found,
        digest=hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest(),
        model=served_model_name or found.model_name,
        tokenizer=tokenizer,
        vocabulary=read_vocabulary(tokenizer, definition),
        template=read_template(folder),
    )
