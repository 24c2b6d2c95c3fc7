"""Several hosts: addresses, one clock for all, and the reports that travel between them."""

from backend.hosts.hosts import Hosts, clock_slack_s

__all__ = ["Hosts", "clock_slack_s"]
