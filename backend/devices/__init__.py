"""Devices as one process sees them: CPU, CUDA, and one without hardware for tests."""

from backend.devices.device import CpuDevice, Device, parse_devices
from backend.devices.opening import open_devices

__all__ = ["CpuDevice", "Device", "open_devices", "parse_devices"]
