"""What a run's end costs by the size of its state: ``python -m experiments.run_end``."""
