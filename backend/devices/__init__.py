"""Devices as the executors of one process see them: CPU, CUDA, and one without hardware for tests."""
