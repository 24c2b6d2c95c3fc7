"""Models of Hugging Face, unedited, called as their users call them: model(**batch).loss.  Skipped where transformers is not installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from experiments.corpus.libraries import make_ready
from planner.cost import AnalyticCost
from planner.cost.clusters import preset
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram
from planner.ir.graph import Effect
from planner.opset import known_targets
from planner.parallelism.make import PlanOptions, make_plan
from zoo.language.llama import llama3

BATCH, SEQ, VOCAB, STEPS = 4, 8, 64, 2


def _gpt2(hf: Any) -> nn.Module:
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": VOCAB, "n_positions": SEQ}
    model: nn.Module = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))  # dropout 0.1, as all of them
    return model


def _bert(hf: Any) -> nn.Module:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": VOCAB}
    model: nn.Module = hf.BertForMaskedLM(hf.BertConfig(**sizes)).train()
    return model


def _llama(hf: Any) -> nn.Module:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    model: nn.Module = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, vocab_size=VOCAB))
    return model


def _t5(hf: Any) -> nn.Module:
    sizes = {"num_layers": 1, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": VOCAB}
    model: nn.Module = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0))
    return model


MODELS: dict[str, Callable[[Any], nn.Module]] = {"gpt2": _gpt2, "bert": _bert, "llama": _llama, "t5": _t5}


_PLAIN = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": VOCAB}
MORE: dict[str, Callable[[Any], nn.Module]] = {
    "qwen3": lambda hf: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_PLAIN, num_key_value_heads=2, head_dim=8)),
    "gemma2": lambda hf: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_PLAIN, num_key_value_heads=2, head_dim=8)),
    "mixtral": lambda hf: hf.MixtralForCausalLM(hf.MixtralConfig(**_PLAIN, num_key_value_heads=2, num_local_experts=4)),
    "roberta": lambda hf: hf.RobertaForMaskedLM(hf.RobertaConfig(**_PLAIN, pad_token_id=1)).eval(),
}


def batch(step: int, *, padded: bool) -> dict[str, Tensor]:
    """Ids, and with padding a mask and ignored labels."""
    ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(step))
    if not padded:
        return {"input_ids": ids, "labels": ids}
    mask = (torch.arange(SEQ) < torch.tensor([8, 5, 8, 3]).unsqueeze(1)).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.fixture(scope="module")
def hf() -> ModuleType:
    make_ready()
    module: ModuleType = pytest.importorskip("transformers")
    return module


@pytest.mark.parametrize(
    ("name", "padded"), [*((name, padded) for name in MODELS for padded in (False, True)), *((name, False) for name in MORE)]
)
def test_an_unedited_model_trains_on_two_devices_like_on_one(name: str, padded: bool, hf: ModuleType) -> None:
    torch.manual_seed(0)
    module = (MODELS | MORE)[name](hf)
    source = Program(module, batch(0, padded=padded), optimizer=SGD(lr=0.05, momentum=0.9), data=lambda step: batch(step, padded=padded))
    graph = source.graph()
    assert {op.target for op in graph.ops} <= known_targets()
    options = PlanOptions(pins=("input.*=S(0)",))
    plan = make_plan(graph, model=name, batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    outcome = perform(plan, source.initial_state(), source.batch, STEPS, gradients=True)
    alone = train_eagerly(source, 1, STEPS)
    # a plan holds the buffers that the step reads (Llama keeps a copy of its frequencies, which no step does)
    assert_transparent(outcome, replace(alone, buffers={n: b for n, b in alone.buffers.items() if n in outcome.states}))


def test_the_same_llama_by_transformers_and_by_the_zoo_takes_one_step_within_3_percent(hf: ModuleType) -> None:
    sizes = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 2, "hidden": 1408, "vocab": 2048}
    config = hf.LlamaConfig(
        num_hidden_layers=4, hidden_size=512, num_attention_heads=8, num_key_value_heads=2, intermediate_size=1408, vocab_size=2048
    )
    ids = torch.randint(0, 2048, (64, 512))
    theirs = Program(hf.LlamaForCausalLM(config).to(torch.bfloat16), {"input_ids": ids, "labels": ids}, optimizer="adamw")
    steps = []
    for source in (llama3(**sizes, batch=64, seq=512, dtype="bf16"), theirs):
        options = PlanOptions(mesh=(8,), zero=0, recompute=False)
        plan = make_plan(source.graph(), model="llama", batch_size=64, cluster=preset("dgx-h100:1"), options=options)
        steps.append(sum(task.acts * AnalyticCost(plan.cluster).act_s(plan, task, 0) for task in plan.tasks))
    assert steps[1] == pytest.approx(steps[0], rel=0.03)


def test_a_model_without_loss_takes_one_of_the_user(hf: ModuleType) -> None:
    """Positional ids, and a loss of the output object."""
    torch.manual_seed(0)
    ids = batch(0, padded=False)["input_ids"]
    source = Program(_gpt2(hf), (ids, ids), lambda out, target: nn.functional.cross_entropy(out.logits.flatten(0, 1), target.flatten()))
    assert source.num_targets == 1 and source.graph().values[source.graph().loss].shape == ()


def test_dropout_at_its_default_is_planned_in_training_and_absent_in_eval(hf: ModuleType) -> None:
    model = _bert(hf)
    assert any(op.effect is Effect.RANDOM for op in Program(model.train(), batch(0, padded=False)).graph().ops)
    assert not any(op.effect is Effect.RANDOM for op in Program(model.eval(), batch(0, padded=False)).graph().ops)


# --- what needs no transformers ----------------------------------------------------------------------------------------------


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Scorer(nn.Module):
    """As those models are called: by keyword, labels optional."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor, scale: Tensor | None = None, labels: Tensor | None = None) -> Output:
        logits = self.layer(inputs if scale is None else inputs * scale)
        return Output(None if labels is None else nn.functional.cross_entropy(logits, labels), logits)


X, Y = torch.randn(6, 4), torch.arange(6) % 3


def test_a_mapping_is_given_by_keyword() -> None:
    """labels is the third parameter and the second entry: only its name can say so."""
    source = Program(Scorer(), {"inputs": X, "labels": Y})
    outcome = train_eagerly(source, 2, 1)
    plan = make_plan(source.graph(2), model="m", batch_size=6, cluster=roomy_cluster(2), options=PlanOptions(micro_batches=2))
    assert_transparent(perform(plan, source.initial_state(2), source.batch, 1, gradients=True), outcome)


def test_targets_of_a_loss_stand_at_the_end_of_a_mapping() -> None:
    source = Program(Scorer(), {"inputs": X, "target": Y}, lambda out, target: nn.functional.cross_entropy(out.logits, target))
    assert torch.equal(source.loss_of(source.module, source.batch(0)), source.module(X, labels=Y).loss)


def test_data_of_other_keys_is_refused() -> None:
    source = Program(Scorer(), {"inputs": X, "labels": Y}, data=lambda step: {"labels": Y, "inputs": X})
    with pytest.raises(InvalidProgram, match="keys of example_inputs, in their order: inputs, labels"):
        source.batch(0)


def test_an_output_object_without_loss_is_no_loss() -> None:
    with pytest.raises(InvalidProgram, match="must return a scalar loss but returned a Output"):
        Program(Scorer(), X).graph()
