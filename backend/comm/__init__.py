"""Communication between ranks: collectives, sockets, and memory that processes of one host share."""
