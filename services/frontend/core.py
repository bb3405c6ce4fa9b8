"""What the frontend reads of a core, once, off the event loop: manifest, tokenizer, chat template.

Read-only after loading; rendering and encoding run in worker threads of the frontend process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.frontend.chat_prompt import ChatPrompts, PromptForm
from services.frontend.template import Message, read_settings, read_template, special_texts
from services.frontend.tokenization import Tokenization, read_tokenization
from services.frontend.vocabulary import Vocabulary
from shared import manifest
from shared.errors import InvalidRequest, ModelNotFound, ProcessError
from shared.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Core:
    """The tokenizing side of a core. `digest` is SHA-256 of manifest.json, as the scheduler tells it."""

    manifest: Manifest
    digest: str
    model: str
    prompts: ChatPrompts

    @property
    def tokenization(self) -> Tokenization:
        """Text to tokens and back."""
        return self.prompts.tokenization

    @property
    def vocabulary(self) -> Vocabulary:
        """The bytes of each token."""
        return self.tokenization.vocabulary

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.manifest.geometry.context_length

    def check_model(self, name: str | None) -> None:
        """Whether the model that a request names, if any, is this one. Raises `ModelNotFound`, without the name."""
        if name is not None and name != self.model:
            reason = f"the model that was asked for is not served here; this server serves {self.model}"
            raise ModelNotFound(reason, param="model")

    def encode_chat(
        self,
        turns: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """The prompt of a conversation as token ids: exactly what the template says, and no BOS besides.

        `kwargs` are the client's `chat_template_kwargs`. Blocking. Raises `InvalidRequest` naming the field.
        """
        if continue_final_message:
            if add_generation_prompt:
                reason = "continue_final_message and add_generation_prompt cannot both be true"
                raise InvalidRequest(reason, param="continue_final_message")
            if not turns or turns[-1]["role"] != "assistant":
                reason = "continue_final_message needs a last message of the assistant"
                raise InvalidRequest(reason, param="continue_final_message")
        form = PromptForm(add_generation_prompt, continue_final_message, self.prompts.template.options(kwargs))
        return self._checked(self.prompts.encode(turns, form), "messages")

    def encode_text(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """A raw prompt as token ids. The caller writes control tokens as text, so they are recognised.

        `add_special_tokens` opens it as the tokenizer's rule says, usually with one BOS, which is not doubled if the
        text writes it out. Blocking. Raises `InvalidRequest`.
        """
        return self._checked(self.tokenization.encode(text, add_special_tokens=add_special_tokens), "prompt")

    def _checked(self, ids: list[int], param: str) -> tuple[int, ...]:
        if not ids:
            raise InvalidRequest("the prompt has no token", param=param)
        if max(ids) >= self.manifest.geometry.vocab_size:
            raise InvalidRequest("the prompt has a token that the model does not know", param=param)
        return tuple(ids)


def load_core(folder: Path, served_model_name: str | None) -> Core:
    """Reads a core folder. Blocking. Raises `ProcessError` and `ManifestError`."""
    # One request is one thread already; the library's own pool would only compete with the worker for cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    found = manifest.read(folder)
    settings = read_settings(folder)
    path = folder / "tokenizer.json"
    try:
        tokenization = read_tokenization(path.read_bytes(), settings, special_texts(settings))
    except ProcessError:
        raise
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise ProcessError(f"cannot read {path}: {error}") from error
    return Core(
        manifest=found,
        digest=hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest(),
        model=served_model_name or found.model_name,
        prompts=ChatPrompts(read_template(folder), tokenization),
    )
