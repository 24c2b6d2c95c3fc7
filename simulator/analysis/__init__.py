"""What a simulation says afterwards: live bytes over time and by category, idle time and its reasons, forecasts without a trace."""
