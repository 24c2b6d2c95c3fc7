"""From the traced fx graph to the LogicalGraph, which knows neither torch nor devices."""
