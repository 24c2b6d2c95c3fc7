"""Several hosts: addresses, one clock for all, and the reports that travel between them."""
