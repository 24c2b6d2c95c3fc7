"""Models of the zoo compute the same with attention written out and with torch's function, which a Plan keeps whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
import torch

from planner.ir.errors import InvalidProgram
from zoo import ZOO

SMALL: Mapping[str, dict[str, object]] = {
    "gpt": {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "batch": 2, "seq": 8},
    "gpt2": {"layers": 1, "width": 16, "heads": 2, "vocab": 32, "batch": 2, "seq": 8},
    "gpt3": {"layers": 1, "width": 16, "heads": 2, "vocab": 32, "batch": 2, "seq": 8},
    "bert": {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "batch": 2, "seq": 8},
    "dnabert": {"kmer": 3, "layers": 1, "width": 16, "heads": 2, "batch": 2, "seq": 8},
    "moe": {"layers": 2, "width": 16, "heads": 2, "experts": 2, "hidden": 16, "vocab": 32, "batch": 2, "seq": 8},
    "vit": {"batch": 2, "image": 16, "patch": 8, "classes": 4, "layers": 2, "width": 16, "heads": 2},
    "deepseek": {"layers": 2, "dense": 1, "width": 16, "heads": 2, "head": 4, "rotary": 4, "q_rank": 8, "kv_rank": 8, "hidden": 16}
    | {"experts": 4, "asked": 2, "groups": 1, "groups_asked": 1, "expert_hidden": 8, "vocab": 32, "batch": 2, "seq": 8},
    "llama3": {"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 16, "vocab": 32, "batch": 2, "seq": 8},
}


@pytest.mark.representatives("llama3")
@pytest.mark.parametrize("name", SMALL)
def test_both_forms_of_attention_have_one_loss_and_one_gradient(name: str) -> None:
    made = {}
    for form in ("eager", "fused"):
        source = ZOO[name](**SMALL[name], attention=form)
        loss = source.loss_of(source.module, source.batch(0))
        loss.backward()
        made[form] = loss.detach(), {n: p.grad for n, p in source.module.named_parameters()}
        ops = Counter(op.target for op in source.graph().ops)
        attentions = int(SMALL[name]["layers"])  # type: ignore[call-overload]
        assert ops["regista.attention"] == ops["regista.attention_backward"] == (attentions if form == "fused" else 0)
    torch.testing.assert_close(made["fused"][0], made["eager"][0])
    for parameter, gradient in made["eager"][1].items():
        torch.testing.assert_close(made["fused"][1][parameter], gradient, rtol=1e-4, atol=1e-6)


def test_a_model_without_a_mask_holds_none() -> None:
    assert not any(name.endswith("mask") for name, _ in ZOO["llama3"](**SMALL["llama3"]).module.named_buffers())
    assert any(name.endswith("mask") for name, _ in ZOO["gpt"](**SMALL["gpt"]).module.named_buffers())


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="gpt: attention 'flash' is not known; choose from fused, eager"):
        ZOO["gpt"](attention="flash")
