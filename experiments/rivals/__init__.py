"""The same training step by torch's own means: what ``python -m experiments.rivals`` measures Plans against.

job         what both sides train: model, ranks, micro-batches, steps, and the Plan of our side
ways        the rivals: DistributedDataParallel, fully_shard, torch.distributed.pipelining, plain eager training
worker      one process of a rival
compiled    a Plan on one device with compiled kernels against torch.compile, eager training and itself op by op
side        one side of a pair as a process of its own: it starts its workers and says when a step has ended
turns       both sides alive, one of them running: workers are stopped and resumed by signals
"""

from experiments.rivals.job import JOBS, Job, plan_of
from experiments.rivals.turns import Measured, against

__all__ = ["JOBS", "Job", "Measured", "against", "plan_of"]
