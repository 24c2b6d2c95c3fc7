"""What people see: pictures, tables in the terminal, exports for other tools, timelines for the browser."""
