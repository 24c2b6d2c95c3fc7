"""Random programs, planned at random, performed and compared with plain PyTorch in float64.

nets.py          convolutional networks of parts that look at features in many orders and strides
sequences.py     models of sequences of parts that index, mask, write in place, sum along and keep states
states.py        such models among whose parts some keep state: averages, queues, teachers, codebooks, counters
trainings.py     blocks of a language model under random optimizers, schedules, clipping and ways to distribute them
compared.py      what a run has to agree with, and by how much
"""
