"""The page of a server: three files without a build step, which ask nobody but the server."""

from regista.server.page.assets import PAGE

__all__ = ["PAGE"]
