"""What `flare run` says once its server is ready: where the page is, and commands that work as they stand."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from compose.local_servers import living
from compose.readiness import Address

QUESTION = "Why is the sky blue?"


def command() -> str:
    """`flare` as it can be called from the folder that this process was started in, quoted for a shell."""
    known = (Path(sys.argv[0]), Path(sys.executable).with_name("flare"))
    own = next((path for path in known if path.name == "flare" and path.is_file()), None)
    if own is None:
        return f"{shlex.quote(sys.executable)} -m compose.cli"
    found = shutil.which("flare")
    if found is not None and os.path.samefile(found, own):
        return "flare"
    here, path = Path.cwd(), own.absolute()
    if not path.is_relative_to(here):
        return shlex.quote(str(path))
    near = str(path.relative_to(here))
    return shlex.quote(near if os.sep in near else f"./{near}")


def choice(address: Address, chosen: Path | None) -> str:
    """The option that other commands need to find this server, if they need one; begins with a space."""
    if chosen is not None:
        return f" --run-dir {shlex.quote(str(chosen.absolute()))}"
    return f" --port {address.port}" if len(living()) > 1 else ""


def greeting(address: Address, model: str, *, flare: str, which: str, keys: bool, logs: bool) -> str:
    """What a newcomer needs. `flare` and `which` as `command` and `choice` say; never a key itself."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": QUESTION}]})
    key = '    -H "Authorization: Bearer $FLARE_API_KEY" \\\n' if keys else ""
    return (
        f"\nFlare serves {model}. The chat page is {address.url}/ in a browser.\n\n"
        + ("The API wants one of its keys: the commands below take it from the variable FLARE_API_KEY.\n\n" * keys)
        + f"  {flare} chat{which}\n"
        + (f"  {flare} logs --follow{which}\n" * logs)
        + f"\n  curl -N {address.url}/v1/chat/completions \\\n{key}"
        f"    -H 'Content-Type: application/json' \\\n    -d {shlex.quote(body)}\n"
    )
