"""Values in a notebook: HTML of a Plan, a Trace, a comparison and an advice with the facts of their screens, and pictures."""

from regista.notebook.pictures import Picture, gantt
from regista.notebook.values import html_of

__all__ = ["Picture", "gantt", "html_of"]
