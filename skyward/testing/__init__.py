"""Support for authors of extensions: tests of a provider's conformance to its contract."""
