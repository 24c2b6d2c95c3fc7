"""Do the tests notice a fault?  ``python -m tests.mutation`` plants random ones, one at a time, and counts those that some test catches."""
