"""The parent of a run: it starts the workers, watches them, and explains what went wrong."""
