"""The HTTP edge of a server: routes, who may come in, how large and how slow a request may be, its description as OpenAPI."""

from regista.server.edge.app import make_app
from regista.server.edge.listen import Address, serve

__all__ = ["Address", "make_app", "serve"]
