"""What can be said about Plans and traces: comparisons, explanations, differences, budgets, what-ifs."""
