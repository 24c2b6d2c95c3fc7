"""What a device costs: kernels of programs timed one by one, and the cluster and the kernel table that follow."""

from regista.device_times.clusters import cluster_of, host_of
from regista.device_times.measuring import calibrate_device
from regista.device_times.programs import Size

__all__ = ["Size", "calibrate_device", "cluster_of", "host_of"]
