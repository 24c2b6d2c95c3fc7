"""How far a prediction can be trusted: intervals from the errors of published and own points, and which constants of a cluster matter."""

from regista.trust.conformal import LEVEL, Scored, conformal_width, left_out_widths

__all__ = ["LEVEL", "Scored", "conformal_width", "left_out_widths"]
