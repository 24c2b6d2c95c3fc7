"""What a rank does in one act, whichever performer it belongs to."""
