"""What machines can do: one TOML per kind of device with its data sheet, and constants that say how much of it training gets."""

from regista.jobs.machines.machine import CONSTANTS, Constant, Machine, load_machine, machine_names, save_constants

__all__ = ["CONSTANTS", "Constant", "Machine", "load_machine", "machine_names", "save_constants"]
