"""What is measured where a GPU is at hand: ``make gpu``, or ``python -m experiments.gpu``.

__main__      every part in a process of its own, with a time limit      parts         what is measured
must_show     which lines hold, from the rows                            bench         where, how large, and rows
compared/     beside the reference, PyTorch's ways, predictions          alone         predicted from acts that ran alone
plans         Plans that no planner makes                                overhead      what the runtime itself takes per act
figure        the picture of the rows                                  publish       to where it is committed

Beside it, without a GPU: late_streams and late_threads, runs whose work starts late at random.
"""
