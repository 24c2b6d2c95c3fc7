"""Published iteration times, predicted by Plans of the planner and the simulator: vTrain, Megatron-LM, sequence parallelism, DLPerf.

points      what was measured, with its real configuration
model       the network that was trained, and how its layers are cut
plans       a point -> the Plan that the published system ran, by pins: nothing is searched that the source fixes
constants   a machine: a cluster and the few constants of the kernels, in a TOML with bounds and origin
kernels     a fragment as the kernels that a GPU framework would launch for it, and what a kernel takes
works       Plans reduced to what a simulation needs, kept on disk, so that a calibration simulates thousands of times
fit, score  calibration on a stated part of the data, prediction of the rest
jobs        published jobs against `regista predict`: its constants, cross-validated errors, memory, intervals (python -m experiments.fidelity.jobs)

``python -m experiments.fidelity`` does all of it (make fidelity).
"""
