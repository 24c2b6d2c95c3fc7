"""What the search over shapes and layouts costs as models and clusters grow, and whether its plans are the best of its whole space."""
