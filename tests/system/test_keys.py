"""API keys of a whole server: handed to the frontend alone, by its environment, and to be seen nowhere else (B66)."""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil

from tests.fixtures.harness import Server

ARGUED, INHERITED = "sk-argued-18c4", "sk-inherited-77af"


def test_only_the_frontend_knows_the_keys(core: Path) -> None:
    """An explicit key stands instead of the variable's, as with every other option."""
    with Server(core, ("--api-key", ARGUED), environment={"FLARE_API_KEYS": f"{INHERITED}, sk-other"}) as server:
        server.wait_ready()
        for attempt, status in ((ARGUED, 200), ("sk-wrong", 401), (INHERITED, 401)):
            headers = {"authorization": f"Bearer {attempt}"}
            assert httpx.get(f"{server.url}/v1/models", headers=headers, trust_env=False).status_code == status
        assert httpx.get(f"{server.url}/ready", trust_env=False).status_code == 200
        knowing = set()
        for process in server.tree():
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            told = " ".join(process.environ().values())
            if "compose.child" in process.cmdline():
                assert not any("sk-" in argument for argument in process.cmdline())
                knowing |= {name for name in ("frontend", "scheduler", "worker") if name in process.cmdline()
                            and "sk-" in told}  # fmt: skip
        assert knowing == {"frontend"}
        written = server.log + "".join(path.read_text() for path in server.log_dir.rglob("*.log"))
        assert "sk-" not in written
