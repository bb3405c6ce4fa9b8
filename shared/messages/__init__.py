"""Messages between services: one module per receiver, frozen tagged structs, msgpack on the wire.

Every message carries its sender's instance id, so that a successor ignores what its predecessor sent.
"""
