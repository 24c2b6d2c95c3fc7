"""Kills and stops of random processes of runs at random times: who is left, how long it took, and whether the run goes on to the last bit."""
