"""The one-shot container before the services: `python -m compose.prepare CORE` makes sure that there is a core.

The name `demo` is the demo model's, prepared here once and again after an upgrade; it is a link, so that it changes
whole or not at all. Any other core must be there already, and is only looked at.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from compose.demo import demo_core
from shared import manifest
from shared.errors import FlareError, ProcessError

DEMO = "demo"


def point(link: Path, core: Path) -> None:
    """Makes `link` lead to `core` in the same folder, in one step. Raises `OSError`."""
    making = link.with_name(f".{link.name}.{os.getpid()}")
    making.unlink(missing_ok=True)
    making.symlink_to(core.name)
    making.replace(link)


@click.command()
@click.argument("core", type=click.Path(path_type=Path))
@click.option("--context-length", type=int, envvar="FLARE_CONTEXT_LENGTH", help="Of the demo core, in tokens.")
@click.option("--concurrency", type=int, envvar="FLARE_CONCURRENCY", help="Requests at once of the demo core.")
def main(core: Path, context_length: int | None, concurrency: int | None) -> None:
    """Prepare CORE if it is the demo model's; else see that it is one."""
    try:
        if core.name == DEMO and (core.is_symlink() or not core.exists()):
            point(core, demo_core(context_length, concurrency, core.parent))
        elif not core.exists():
            raise ProcessError(
                f"there is no core {core}: prepare it there with `ignition export`, or take FLARE_CORE={DEMO} "
                "(docs/operations.md, Compose)"
            )
        found = manifest.read(core)
    except FlareError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error}: uid {os.getuid()} must be able to write there") from error
    geometry = found.geometry
    click.echo(
        f"{core} holds {found.model_name}: {geometry.context_length} tokens, {geometry.concurrency} requests at once"
    )


if __name__ == "__main__":
    main()
