"""What processes of one host share memory for: blocks of transfers, collectives, and messages between ranks."""
