"""A worker: the process that performs one rank's actors."""
