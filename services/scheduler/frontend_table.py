"""Which frontends are connected: instance and routing id of each. No socket of its own; the loop sends.

A routing id belongs to the instance that said Hello on it; messages that name another instance are ignored.
"""

from __future__ import annotations


class FrontendTable:
    """Both directions of the mapping."""

    def __init__(self) -> None:
        self._instances: dict[bytes, int] = {}
        self._peers: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def peers(self) -> tuple[bytes, ...]:
        """Routing ids of all that are known."""
        return tuple(self._instances)

    def peer_of(self, instance: int) -> bytes | None:
        """Where messages for an instance go."""
        return self._peers.get(instance)

    def instance_of(self, peer: bytes) -> int | None:
        """Who said Hello on a routing id."""
        return self._instances.get(peer)

    def greet(self, peer: bytes, instance: int) -> tuple[int, ...]:
        """Enters a frontend and returns the instances that this ends: what a peer was, where an instance was."""
        ended = []
        before = self._instances.get(peer)
        if before is not None and before != instance:
            ended.append(before)
        elsewhere = self._peers.get(instance)
        if elsewhere is not None and elsewhere != peer:
            ended.append(instance)
        for one in ended:
            self.forget(one)
        self._instances[peer] = instance
        self._peers[instance] = peer
        return tuple(ended)

    def forget(self, instance: int) -> None:
        """Removes a frontend."""
        peer = self._peers.pop(instance, None)
        if peer is not None:
            self._instances.pop(peer, None)
