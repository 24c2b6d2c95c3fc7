"""Pictures of Plans, schedules and traces by matplotlib."""
