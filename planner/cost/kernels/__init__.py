"""What a kernel takes on a device of the catalogues: measured tables where there are any, fitted surfaces elsewhere."""

from planner.cost.kernels.devices import DeviceSheet, Precision, device_names, device_sheet
from planner.cost.kernels.model import KernelModel

__all__ = ["DeviceSheet", "KernelModel", "Precision", "device_names", "device_sheet"]
