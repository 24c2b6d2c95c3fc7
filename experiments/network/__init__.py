"""Who shares a link, and what that costs: contention, and Horovod's scaling."""
