"""What a server keeps in its folder: files by the SHA-256 of their content, and requests with what they left."""

from regista.server.store.files import FileStore, Upload
from regista.server.store.requests import RequestStore

__all__ = ["FileStore", "RequestStore", "Upload"]
