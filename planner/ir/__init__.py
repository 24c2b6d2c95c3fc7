"""Floor 0: the shared vocabulary.  Frozen values and their laws, standard library only.

Import what you need from the module that owns it: ``errors units tensor sbp graph cluster collective plan actor liveness verify trace
files protocols text``.
"""
