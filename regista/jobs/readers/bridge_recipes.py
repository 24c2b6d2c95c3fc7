"""What Megatron-Bridge's performance recipes set for mixtures of experts and its published table does not print.

Sources, in NVIDIA-NeMo/Megatron-Bridge:
    until 26.04   scripts/performance/configs/MODEL/*_workload_base_configs.py (gpt_oss at 1e7adfa90, qwen at 01b2977e5, nemotronh at 06e8da4ed)
    since 26.06   the same (deepseek at 042641823, gpt_oss at 07eea52d4, kimi at 013180a75), and src/megatron/bridge/perf_recipes/MODEL/SYSTEM/*.py
                  (qwen gb300 at 007282eae, b300 at 04f013545, common.py at 134e903ad; nemotronh b300 at 12e319474)
"""

from __future__ import annotations

from dataclasses import dataclass

from regista.jobs.job import Precision, Recompute

__all__ = ["NEWEST", "ExpertRecipe", "Release", "expert_recipe"]

Release = tuple[int, int]
"""Year and month of a container: 26.04.01 is (26, 4)."""
NEWEST: Release = (99, 0)
_WHOLE_SINCE: Release = (26, 6)

_H100, _B200, _B300, _GB200, _GB300 = "h100", "b200", "b300", "gb200", "gb300"
_DGX, _NVL72 = frozenset({_H100, _B200, _B300}), frozenset({_GB200, _GB300})

_WHOLE = {"DeepSeekV3": _NVL72, "Qwen3_30B_a3B": _NVL72, "Qwen3_235B_a22B": _NVL72, "GPT OSS 120B": _NVL72}
"""In 8 bits since 26.06: cuda_graph_impl full_iteration, with moe_a2a_overlap (overlap_moe_expert_parallel_comm) and cutedsl_fused_grouped_mlp."""
_WITHOUT_GRAPHS = {"GPT OSS 120B": frozenset({_B200, _GB200}), "Qwen3_235B_a22B": _DGX, "Nemotron_3_Super": frozenset({_B200})}
"""Where no cuda_graph_impl is set, beside H100."""
_EXPERTS_AGAIN = {"Nemotron_3_Nano": frozenset({_H100}), "Nemotron_3_Super": frozenset({_GB200})}
"""Where recompute_modules has moe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRecipe:
    """Knobs of Running."""

    graphs: bool
    host_experts: bool
    fused_experts: bool
    expert_once: bool
    sort_experts: bool
    overlap_experts: bool
    recompute: Recompute


def expert_recipe(model: str, machine: str, precision: Precision, release: Release) -> ExpertRecipe:
    """The recipe of a mixture of experts.

    Args:
        model: as the table has it.   release: of the container; NEWEST where the row does not say.
    """
    late = release >= _WHOLE_SINCE
    whole = late and precision is Precision.FP8 and machine in _WHOLE.get(model, ())
    graphs = whole or (machine != _H100 and machine not in _WITHOUT_GRAPHS.get(model, ()))
    once = whole or _once(model, machine, release)
    return ExpertRecipe(
        graphs=graphs,
        # cuda_graph_scope has attn, mamba, moe_router and moe_preprocess at most.
        host_experts=graphs and not whole,
        fused_experts=whole or (late and model == "GPT OSS 120B" and machine == _B300 and precision is Precision.FP8),
        expert_once=once,
        sort_experts=not once,
        overlap_experts=whole or _beside(model, machine, precision, late),
        recompute=Recompute.EXPERTS if machine in _EXPERTS_AGAIN.get(model, ()) else Recompute.NONE,
    )


def _once(model: str, machine: str, release: Release) -> bool:
    """Whether moe_flex_dispatcher_backend is set (hybridep or deepep)."""
    match model:
        case "GPT OSS 120B":
            return machine == _B300 and release >= _WHOLE_SINCE
        case "Qwen3_235B_a22B":
            # B300's recipe with micro-batches of 2, and hybridep, is that of 26.04.
            return machine in _NVL72 or (machine == _B300 and release >= (26, 4))
        case _:
            return True


def _beside(model: str, machine: str, precision: Precision, late: bool) -> bool:
    """Whether moe_a2a_overlap is set."""
    match model, machine:
        case ("DeepSeekV3", "b200") | ("Qwen3_235B_a22B", "h100"):
            return True
        case "GPT OSS 120B", "gb200":
            return late
        case "GPT OSS 120B", "b300":
            return late and precision is Precision.FP8
        case _:
            return False
