"""Questions to values in forward that are no branch of the graph: checks, and what is known while the step is traced.

An ``assert`` or an ``if ...: raise`` on a tensor is an op that ends the run:

    assert ids.max() < rows                    asked for its truth, the tensor ids.max() < rows has to be true
    if torch.any(var < 0): raise ValueError    torch.any(var < 0) has to be false

While a step is traced a tensor has no value, so that it cannot say whether it is true.  Where the statement that asks goes on in one way only, it
is told that way, and the step gets the op ``regista.check``, which raises where a value says otherwise:

    regista.check      mask [*i], wanted, text -> []      0, P(sum): every part of the mask is looked at where it lies; added to the loss

Which tensors are asked, and what they have to be, is read off the source: operands of ``and`` in an assert, of ``or`` in a condition that raises,
``not`` turns it round.  ``torch._check_tensor_all(mask)``, by which Hugging Face's models check images and their places in a text, is such a check.

``torch.rand([]) < 0`` is false whatever is drawn, as in a LayerDrop that is off.  What is computed of constants alone is known, as the sizes of
images that forward makes by ``torch.tensor``; so is a buffer that no step changes, which every step then checks.  Everything else stays refused:
a value decides what is computed.

    op.py             regista.check, which performers call, too
    statements.py     which statements are checks, and what they need an expression to be
    known.py          values of constants
    kept.py           values of state that no step changes
    draws.py          comparisons of random numbers that are decided
    asked.py          what tensors of a trace are told
"""
