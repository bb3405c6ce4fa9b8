"""`flare chat`: a conversation in the terminal, or with a pipe one question and one answer."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from compose.chat_client import Chat
from compose.local_servers import living
from shared.errors import ProcessError

HISTORY_LINES = 1000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HELP = "/reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer."


def _url(given: str | None) -> str:
    if given is not None:
        return given.rstrip("/")
    found = [server.address.url for server in living() if server.address is not None]
    if len(found) > 1:
        raise click.ClickException(f"several servers run; --url takes one of them: {', '.join(found)}")
    return found[0] if found else "http://127.0.0.1:8000"


def _write(text: str, file: Any) -> None:
    """A terminal must not be steered by what a model says; a file gets it as it is."""
    file.write(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if file.isatty() else text)
    file.flush()


@contextlib.contextmanager
def _remembered() -> Iterator[None]:
    """Line editing, with the lines of earlier conversations in the user's state folder."""
    import readline

    state = os.environ.get("XDG_STATE_HOME")
    path = (Path(state) if state else Path.home() / ".local" / "state") / "flare" / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)


def _answer(chat: Chat, text: str) -> None:
    """Prints one answer. Ctrl-C ends it and nothing else."""
    pieces = chat.ask(text)
    try:
        for piece in pieces:
            _write(piece, sys.stdout)
    except KeyboardInterrupt:
        pieces.close()  # and so the connection
        click.secho("\n[stopped]", dim=True)
        return
    except ProcessError as error:
        click.secho(f"\n{error}", fg="red", err=True)
        return
    click.secho(f"\n[{chat.figures.line()}]", dim=True)


def _talk(chat: Chat) -> None:
    click.secho(f"{chat.url}. {_HELP}", dim=True)
    with _remembered():
        while True:
            try:
                text = input("> ").strip()
            except KeyboardInterrupt:
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            if text == "/quit":
                return
            if text == "/reset":
                chat.reset()
                click.secho("[forgotten]", dim=True)
            elif text.startswith("/"):
                click.secho(_HELP, dim=True)
            elif text:
                _answer(chat, text)


def _once(chat: Chat) -> None:
    """What comes through the pipe is the question. Raises `ClickException`."""
    text = sys.stdin.read().strip()
    if not text:
        raise click.ClickException("there is no question in the pipe")
    try:
        for piece in chat.ask(text):
            _write(piece, sys.stdout)
    except ProcessError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    click.echo()


@click.command()
@click.option("--url", help="Base URL of the API; by default your server on this machine, else http://127.0.0.1:8000.")
@click.option("--model", help="Name of the model; by default whichever is served.")
@click.option("--system", default="", help="A system message that opens every conversation.")
@click.option("--temperature", type=float, help="0 is greedy; by default the model's own.")
@click.option("--top-p", type=float, help="Share of the likeliest tokens; by default the model's own.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer.")
@click.option("--seed", type=int, help="Makes answers repeatable.")
@click.option("--api-key", default="", envvar="FLARE_API_KEYS", help="Key of the API; of several the first is taken.")
def chat(url: str | None, system: str, api_key: str, **values: Any) -> None:
    """Talks with a server's model. With a pipe as input: one question, one answer."""
    fields = {name: value for name, value in values.items() if value is not None}
    talk = Chat(_url(url), api_key.split(",")[0].strip(), system, fields)
    if sys.stdin.isatty():
        _talk(talk)
    else:
        _once(talk)
