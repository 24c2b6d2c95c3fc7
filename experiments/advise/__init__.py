"""``regista advise`` on jobs of frameworks: round trips of their settings, and jobs that are known to be bad."""
