"""What client and runner say to each other: frames, handshake, payloads. Standard library and cloudpickle only."""
