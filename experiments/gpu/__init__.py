"""What is measured where a GPU is at hand: ``make gpu``, or ``python -m experiments.gpu``.

__main__  every part in a process of its own, with a time limit      parts   what is measured
plans     the Plans that are                                         alone   predicted from acts that ran alone, before it is measured
figure    the picture of the rows                                overhead  what the runtime itself takes per act

Beside it, without a GPU: late_streams and late_threads, runs whose work starts late at random.
"""
