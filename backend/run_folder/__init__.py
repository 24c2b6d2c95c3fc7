"""The folder of one run: what the parent hands to the workers, and what they leave behind."""
