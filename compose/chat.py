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

from compose import server_choice
from compose.chat_client import Chat
from shared.errors import ProcessError

HISTORY_LINES = 1000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HELP = "/reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer."


def _url(given: str | None, run_dir: Path | None, port: int | None) -> str:
    server_choice.only_one(url=given, run_dir=run_dir, port=port)
    if given is not None:
        return server_choice.base_url(given)
    found = server_choice.choose(run_dir, port)
    if found is None:
        return server_choice.at_port(port)
    if found.address is None:
        raise click.ClickException(f"the server of {found.run_dir} does not listen, or not yet")
    return found.address.url


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
        if chat.broken:
            click.secho("[the answer broke off: its text stays in the conversation, /reset forgets it]", dim=True)
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
@server_choice.PORT
@server_choice.RUN_DIR
@click.option("--model", help="Name of the model; by default whichever is served.")
@click.option("--system", default="", help="A system message that opens every conversation.")
@click.option("--temperature", type=float, help="0 is greedy; by default the model's own.")
@click.option("--top-p", type=float, help="Share of the likeliest tokens; by default the model's own.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer.")
@click.option("--seed", type=int, help="Makes answers repeatable, on a server with --deterministic.")
@click.option(
    "--api-key",
    default="",
    envvar=["FLARE_API_KEY", "FLARE_API_KEYS"],
    show_envvar=True,
    help="Key of the API; of several the first is taken.",
)
def chat(url: str | None, run_dir: Path | None, port: int | None, system: str, api_key: str, **values: Any) -> None:
    """Talks with a server's model. With a pipe as input: one question, one answer."""
    fields = {name: value for name, value in values.items() if value is not None}
    talk = Chat(_url(url, run_dir, port), api_key.split(",")[0].strip(), system, fields)
    if sys.stdin.isatty():
        _talk(talk)
    else:
        _once(talk)
