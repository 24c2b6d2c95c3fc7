"""Actors: the token game that a Plan plays, whether it is live, how much memory it holds, and what a valid Plan obeys."""
