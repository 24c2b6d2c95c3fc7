"""A training job as people write it: a model's numbers, a layout on devices, and how the framework runs it.  Frozen values; nothing is read here.

devices = tp x cp x dp x pp        micro-batches m = global_batch / (dp x micro_batch)
experts lie on ep x etp devices of tp x cp x dp, and are replicated on the rest
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from planner.cost.routing import ExpertLoad
from regista.jobs.recipes import Recipe

__all__ = ["Attention", "Job", "Layout", "Model", "Part", "Precision", "Recompute", "Running"]


class Precision(Enum):
    """FP8, NVFP4: matrix products of the layers in 8 or 4 bits (attention, head and everything else in bfloat16); Running.recipe says how scaled."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"

    @property
    def is_low(self) -> bool:
        return self in (Precision.FP8, Precision.NVFP4)

    @property
    def value_bytes(self) -> int:
        """Bytes of a parameter and of an activation."""
        return 4 if self is Precision.FP32 else 2


class Recompute(Enum):
    """What the backward pass makes again.  DOTS: all but what products gave.  QKV: all but q, k and v.   SELECTIVE: the attention's core.

    EXPERTS: the whole part of a layer that has experts, with its exchanges (Megatron's recompute of the module moe).
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    DOTS = "dots"
    QKV = "qkv"
    EXPERTS = "experts"


class Attention(Enum):
    """FUSED: cuDNN's kernel.   FLASH: FlashAttention 2, which is slower on devices since Hopper.   UNFUSED: products and a softmax.

    STEPWISE: products, and a softmax in 32 bits of a kernel per operation; norms are such, too (Megatron where its fused kernels do not serve).
    """

    FUSED = "fused"
    FLASH = "flash"
    UNFUSED = "unfused"
    STEPWISE = "stepwise"

    @property
    def is_one_kernel(self) -> bool:
        """Whether scores never lie in memory."""
        return self in (Attention.FUSED, Attention.FLASH)


class Part(Enum):
    """What a layer of a hybrid is, by its letter in Megatron's patterns.   WHOLE: attention and feed-forward, as in other models."""

    WHOLE = ""
    MAMBA = "M"
    ATTENTION = "*"
    FEED_FORWARD = "-"
    EXPERTS = "E"

    @property
    def attends(self) -> bool:
        return self in (Part.WHOLE, Part.ATTENTION)

    @property
    def feeds(self) -> bool:
        return self in (Part.WHOLE, Part.FEED_FORWARD, Part.EXPERTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer's numbers.  vocab: before padding.   experts: 0 for a dense model; every layer has them otherwise.

    encoder: layers of an encoder over encoder_seq tokens, in front of a decoder with ``layers`` layers over ``seq`` that attend to it too (T5).
    crossed: tokens of another sequence that every layer attends to as well.
    causal: False: every position sees all others (BERT).   learned_positions: a table of seq x hidden.
    kv_latent: multi-latent attention (DeepSeek-V2): keys and values come from so many numbers per token, beside rope_dim of the keys that all heads
    share; 0: there are none.   q_latent: the same of the queries; 0: they come from the token itself.   head_dim: of queries and keys, rope_dim of it
    rotated.   value_dim: of the values; 0: head_dim.
    dense_layers: so many at the beginning have no experts, but ``ffn``.
    pattern: of a hybrid, one letter per layer: M Mamba-2, * attention, - feed-forward, E experts.   state_dim, mamba_heads, mamba_head_dim,
    mamba_groups: of its Mamba layers.   part: what a layer of it is; set by ``stacks``.
    expert_latent: width in which tokens travel to experts and are multiplied there (latent mixture of experts: a product before the dispatch brings
    them into it, one after it back); 0: the hidden width.
    predicted: further tokens that each position predicts (multi-token prediction), each by a head of its own layers and the shared logits.
    predicted_pattern: letters of such a head's layers; empty: one layer as the model's last.   predicted_alike: its heads share their parameters.
    expert_bias: experts' second products have biases.   clamped: the two halves in front of a gated activation are clamped (GPT-OSS has both).
    attended: tokens of a document where several are packed into a sequence and see only their own; 0: a sequence is one.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    seq: int
    gated: bool = False
    tied: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    causal: bool = True
    learned_positions: bool = False
    attended: int = 0
    encoder: int = 0
    encoder_seq: int = 0
    crossed: int = 0
    kv_latent: int = 0
    q_latent: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    dense_layers: int = 0
    pattern: str = ""
    state_dim: int = 0
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_groups: int = 0
    expert_latent: int = 0
    predicted: int = 0
    predicted_pattern: str = ""
    predicted_alike: bool = False
    expert_bias: bool = False
    clamped: bool = False
    part: Part = Part.WHOLE

    @property
    def mamba_width(self) -> int:
        """Of what a Mamba layer scans."""
        return self.mamba_heads * self.mamba_head_dim

    @property
    def mamba_columns(self) -> int:
        """Of a Mamba layer's first product: gate and input, B and C of each group, a step per head."""
        return 2 * self.mamba_width + 2 * self.mamba_groups * self.state_dim + self.mamba_heads

    @property
    def value_width(self) -> int:
        """Of one head's values."""
        return self.value_dim or self.head_dim

    @property
    def latent_width(self) -> int:
        """Numbers per token from which all heads' queries, keys and values come; 0 without multi-latent attention."""
        return self.q_latent + self.kv_latent + self.rope_dim if self.kv_latent else 0

    @property
    def attention_parameters(self) -> int:
        """Of one layer: query, key, value and output projections; of a Mamba layer its two products."""
        if self.part is Part.MAMBA:
            return self.hidden * (self.mamba_columns + self.mamba_width)
        if not self.part.attends:
            return 0
        if not self.kv_latent:
            return self.hidden * (self.head_dim * (self.heads + self.kv_heads) + self.value_width * (self.heads + self.kv_heads))
        queries = (self.q_latent or self.hidden) * self.heads * self.head_dim
        keys = self.kv_latent * self.heads * (self.head_dim - self.rope_dim + self.value_width)
        return self.hidden * self.latent_width + queries + keys + self.heads * self.value_width * self.hidden

    @property
    def duplicated_parameters(self) -> int:
        """Of one layer: those that each tensor-parallel rank has whole, norms, the router, and what makes latents."""
        return 4 * self.hidden + self.hidden * (self.experts + self.latent_width + 2 * self.expert_latent)

    def mlp_parameters(self, ffn: int, width: int = 0) -> int:
        """width: of what comes in and goes out; 0: the hidden width."""
        return (3 if self.gated else 2) * (width or self.hidden) * ffn

    @property
    def expert_width(self) -> int:
        """Of a token as experts take it."""
        return self.expert_latent or self.hidden

    @property
    def dense_parameters(self) -> int:
        """Of one layer, without experts: what the tensor-parallel ranks share."""
        own = self.attention_parameters + 4 * self.hidden
        if not self.part.feeds:
            return own
        if not self.experts:
            return own + self.mlp_parameters(self.ffn)
        return (
            own + self.hidden * (self.experts + 2 * self.expert_latent) + (self.mlp_parameters(self.shared_ffn) if self.shared_ffn else 0)
        )

    @property
    def expert_parameters(self) -> int:
        """Of one layer: all its experts."""
        return self.experts * self.mlp_parameters(self.expert_ffn, self.expert_width)

    @property
    def stacks(self) -> tuple[tuple[Model, int], ...]:
        """The models of equal layers that it consists of, in their order, and how many layers of each: itself, an encoder and a decoder, or layers
        without and with experts."""
        if self.pattern:
            return tuple((self._kind(Part(letter)), self.pattern.count(letter)) for letter in dict.fromkeys(self.pattern))
        if not self.encoder:
            if not self.dense_layers:
                return ((self, self.layers),)
            plain = min(self.dense_layers, self.layers) if self.experts else 0
            first = replace(self, experts=0, top_k=0, expert_ffn=0, shared_ffn=0, dense_layers=0)
            return tuple((model, count) for model, count in ((first, plain), (replace(self, dense_layers=0), self.layers - plain)) if count)
        encoder = replace(self, layers=self.encoder, seq=self.encoder_seq, causal=False, encoder=0)
        return (encoder, self.encoder), (replace(self, encoder=0, crossed=self.encoder_seq), self.layers)

    def _kind(self, part: Part) -> Model:
        """A layer of a hybrid."""
        of = replace(self, pattern="", part=part)
        return of if part is Part.EXPERTS else replace(of, experts=0, top_k=0, expert_ffn=0, shared_ffn=0, expert_latent=0)

    @property
    def predictor(self) -> tuple[Model, ...]:
        """The layers of one head that predicts a further token, behind the product of two hidden widths that joins state and next token."""
        if not self.predicted:
            return ()
        if self.predicted_pattern:
            return tuple(self._kind(Part(letter)) for letter in self.predicted_pattern)
        return (replace(self.stacks[-1][0], predicted=0),)

    @property
    def predictor_parameters(self) -> int:
        """Of all such heads."""
        own = sum(model.dense_parameters + model.expert_parameters for model in self.predictor) + 2 * self.hidden**2
        return (1 if self.predicted_alike else self.predicted) * own if self.predicted else 0

    @property
    def parameters(self) -> int:
        ends = self.vocab * self.hidden * (1 if self.tied else 2)
        if self.encoder:
            return self.layers * (self.dense_parameters + self.expert_parameters) + ends
        return (
            sum(count * (model.dense_parameters + model.expert_parameters) for model, count in self.stacks)
            + self.predictor_parameters
            + ends
        )

    def flop_per_token(self) -> float:
        """Of forward and backward, as papers count them for MFU: 6 per parameter that a token meets, and 6 s h per layer of causal attention."""
        ahead = sum(model._layer_flop() for model in self.predictor) + 12.0 * self.hidden**2
        heads = (1 + self.predicted) * 6.0 * self.vocab * self.hidden
        return sum(count * model._layer_flop() for model, count in self._flop_stacks()) + self.predicted * ahead + heads

    def _flop_stacks(self) -> tuple[tuple[Model, int], ...]:
        return ((self, self.layers + self.encoder),) if self.encoder else self.stacks

    def _layer_flop(self) -> float:
        """Of one layer, per token."""
        met = self.attention_parameters + (self.mlp_parameters(self.ffn) if self.part.feeds else 0)
        if self.part is Part.MAMBA:
            return 6.0 * met + 12.0 * self.mamba_width * self.state_dim
        if self.experts:
            chosen = self.top_k * self.mlp_parameters(self.expert_ffn, self.expert_width) + 2 * self.hidden * self.expert_latent
            met = self.attention_parameters + chosen + self.mlp_parameters(self.shared_ffn)
        pairs = (
            self.part.attends * (3 if self.causal else 6) * (self.attended or self.seq) * self.heads * (self.head_dim + self.value_width)
        )
        return 6.0 * met + pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism.  vp: chunks of layers per stage.   etp: how many devices share one expert's products.

    fsdp: devices over which parameters lie split and are gathered layer by layer; 1: they lie whole.
    direct_gather: what lies split is gathered parameter by parameter, each device over its own network port (ZeRO stage 3 as DeepSpeed performed it
    on A100 in 2021); False: around rings, which bring a node each byte once.
    vp_group: micro-batches that a stage performs with one chunk before it takes the next (Megatron's microbatch_group_size_per_vp_stage); None: pp.
    layers_of_chunks: layers of chunk 0, 1, ... in the order of the model, pp x vp of them; None: even, with the rest spread.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    vp: int = 1
    dp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    sequence_parallel: bool = False
    fsdp: int = 1
    direct_gather: bool = False
    vp_group: int | None = None
    layers_of_chunks: tuple[int, ...] | None = None

    @property
    def devices(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def per_round(self) -> int:
        """Micro-batches per round of the interleaved schedule."""
        return self.pp if self.vp_group is None else self.vp_group

    @property
    def chunks(self) -> int:
        return self.pp * self.vp


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How a framework runs the job.  overlap_*: whether communication of that kind goes on beside computing.

    distributed_optimizer: master weights and moments lie split over the replicas.   grad_bytes, master_bytes, moment_bytes: per parameter.
    frozen: only adapters train (LoRA); parameters have no gradients.   jax: compiled by XLA, no host time per kernel.
    recipe: how values are scaled where products take 8 or 4 bits.   low_params: parameters are held and gathered as products take them, without a
    copy in 16 bits (fp8_params of Transformer Engine).
    deferred_wgrad: of so many micro-batches the head's gradient of weights is computed at the step's end, until when its operands are kept.
    expert_once: a token travels once to each node that has experts of it, once to each device inside one (DeepEP, HybridEP: Megatron's flex
    dispatcher).   overlap_experts: exchanges go on beside computing of another micro-batch (overlap_moe_expert_parallel_comm).
    fused_loss: cross entropy is one kernel that works in 16 bits.   graphs: kernels are launched by CUDA graphs.
    host_experts: but for those behind the exchange of experts, whose number of tokens the host waits for (cuda_graph_scope attn, moe_router,
    moe_preprocess).   fused_experts: biases and clamps of experts are part of their products' kernels.   sort_experts: tokens that have come are
    sorted by expert, and back (Megatron's dispatcher alltoall).
    bucket_bytes: in which gradients and parameters are collected to travel, where they do not lie so already (DeepSpeed).
    environment: of the machine.
    load: of experts, as tokens are routed; its top_k is the model's.   None: every expert has the even load.
    """

    precision: Precision = Precision.BF16
    recipe: Recipe = Recipe.DELAYED
    low_params: bool = False
    recompute: Recompute = Recompute.NONE
    recompute_layers: int | None = None
    distributed_optimizer: bool = False
    grad_bytes: int = 4
    master_bytes: int = 4
    moment_bytes: int = 8
    overlap_tp: bool = False
    overlap_grad: bool = False
    overlap_param: bool = False
    overlap_p2p: bool = False
    overlap_experts: bool = False
    expert_once: bool = False
    load: ExpertLoad | None = None
    attention: Attention = Attention.FUSED
    dropout: bool = False
    frozen: bool = False
    deferred_wgrad: int = 0
    fused_loss: bool = False
    jax: bool = False
    graphs: bool = False
    host_experts: bool = False
    fused_experts: bool = False
    sort_experts: bool = False
    bucket_bytes: int = 0
    environment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """name: how the row is called.   machine: a file of regista/jobs/machines.   devices: that the job says it has."""

    name: str
    machine: str
    devices: int
    model: Model
    layout: Layout
    running: Running
