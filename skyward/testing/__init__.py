"""For authors of extensions: tests that say whether a provider keeps its contract."""
