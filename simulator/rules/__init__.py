"""What every engine shares: prices of acts, the meeting of ranks in collectives, live bytes, and the trace of a finished game."""
