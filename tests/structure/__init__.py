"""The shape of the house in figures: files per folder, lines per file, code written twice, and words that no paper has."""
