"""A server under load, and its page in a browser."""
