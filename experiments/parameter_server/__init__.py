"""Parameter servers against a ring: what synchronising a model costs as ranks are added."""
