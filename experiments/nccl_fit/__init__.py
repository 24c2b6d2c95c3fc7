"""NCCL's all-reduce times: curves fitted on every other size, held against the sizes in between."""
