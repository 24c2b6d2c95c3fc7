"""A StableHLO module as a flat list of operations, read by the MLIR bindings of jaxlib."""

from planner.frontend.stablehlo.listing.reading import listing_of_bytes, listing_of_text
from planner.frontend.stablehlo.listing.values import Given, Listing, Operation

__all__ = ["Given", "Listing", "Operation", "listing_of_bytes", "listing_of_text"]
