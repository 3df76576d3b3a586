"""The protocol between client and runner: frames, handshake, payloads. Standard library and cloudpickle only."""
