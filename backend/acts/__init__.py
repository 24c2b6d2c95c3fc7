"""What all performers share: the bookkeeping of actors, and what a rank does in one act."""

from backend.acts.act import Batches
from backend.acts.bookkeeper import BegunAct, Bookkeeper
from backend.acts.rows import ActRow, acts_of

__all__ = ["ActRow", "Batches", "BegunAct", "Bookkeeper", "acts_of"]
