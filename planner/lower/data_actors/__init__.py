"""Loading and saving as actors of a Plan."""
