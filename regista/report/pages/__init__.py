"""The pages of a report: a comparison, a table of rows, a measured sweep, and the index of all."""
