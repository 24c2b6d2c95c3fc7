"""transformers: encoders of text, trained on masked tokens; classification, tagging and answering questions."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.corpus.case import BATCH, SEQ, VOCAB, Case, hugging_face, text
from experiments.corpus.models.sizes import ENDS, TEXT

__all__ = ["CASES"]

_ROBERTA = {**TEXT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": VOCAB, "max_position_embeddings": 64}
_BERT_TENSOR = (
    "*.query.weight=S(0)",
    "*.key.weight=S(0)",
    "*.value.weight=S(0)",
    "*.attention.output.dense.weight=S(1)",
    "*.intermediate.dense.weight=S(0)",
    "*.[01].output.dense.weight=S(1)",
)


def _boxes() -> dict[str, Tensor]:
    left, top = torch.randint(0, 400, (2, BATCH, SEQ)).unbind()
    return text() | {"bbox": torch.stack([left, top, left + 100, top + 50], -1)}


def _classes() -> dict[str, Tensor]:
    return text(labels=False) | {"labels": torch.randint(0, 2, (BATCH,))}


def _answers() -> dict[str, Tensor]:
    return text(labels=False) | {"start_positions": torch.randint(0, 8, (BATCH,)), "end_positions": torch.randint(8, 13, (BATCH,))}


def _tags() -> dict[str, Tensor]:
    return text(labels=False) | {"labels": torch.randint(0, 2, (BATCH, SEQ))}


def _choices() -> dict[str, Tensor]:
    given = text(labels=False)
    return {name: value.unsqueeze(1).repeat(1, 2, 1) for name, value in given.items()} | {"labels": torch.randint(0, 2, (BATCH,))}


def _masked(model_type: str, *, name: str = "", tensor: tuple[str, ...] = (), **sizes: object) -> Case:
    return hugging_face(model_type, "MaskedLM", text, name=name, tensor=tensor, **sizes)


CASES: tuple[Case, ...] = (
    _masked("bert", **TEXT, tensor=_BERT_TENSOR),
    hugging_face(
        "bert",
        "BertForPreTraining",
        lambda: text() | {"next_sentence_label": torch.randint(0, 2, (BATCH,))},
        name="bert pre-training",
        **TEXT,
    ),
    hugging_face("bert", "SequenceClassification", _classes, name="bert classifier", **TEXT),
    hugging_face("bert", "QuestionAnswering", _answers, name="bert questions", **TEXT),
    hugging_face("bert", "TokenClassification", _tags, name="bert tags", **TEXT),
    hugging_face("bert", "MultipleChoice", _choices, name="bert choices", **TEXT),
    _masked("roberta", **_ROBERTA),
    hugging_face("roberta", "SequenceClassification", _classes, name="roberta classifier", **_ROBERTA),
    _masked("xlm-roberta", **_ROBERTA),
    _masked("xlm-roberta-xl", **_ROBERTA),
    _masked("camembert", **_ROBERTA),
    _masked("roberta-prelayernorm", **_ROBERTA),
    _masked("data2vec-text", **_ROBERTA),
    _masked("xmod", **_ROBERTA, languages=["en"], default_language="en"),
    _masked("albert", **TEXT, embedding_size=16),
    _masked("electra", **TEXT, embedding_size=16),
    _masked("distilbert", dim=32, hidden_dim=64, n_layers=2, n_heads=4, vocab_size=VOCAB, max_position_embeddings=64),
    _masked("deberta", **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _masked("deberta-v2", **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    _masked("mobilebert", **TEXT, embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    _masked("mpnet", **_ROBERTA),
    _masked("xlm", **_XLM),
    _masked("flaubert", **_XLM),
    _masked("convbert", **TEXT, embedding_size=16),
    _masked("squeezebert", **TEXT, embedding_size=32),
    _masked("funnel", d_model=32, d_head=8, n_head=4, d_inner=64, block_sizes=[1, 1], vocab_size=VOCAB),
    _masked("longformer", **_ROBERTA, attention_window=[8, 8]),
    _masked("big_bird", **_ROBERTA, attention_type="block_sparse", block_size=4, num_random_blocks=1),
    hugging_face("fnet", "MaskedLM", lambda: text(mask=False), **{k: v for k, v in TEXT.items() if k != "num_attention_heads"}),
    _masked("rembert", **TEXT, input_embedding_size=16, output_embedding_size=32),
    _masked("roformer", **TEXT, embedding_size=32),
    _masked("nystromformer", **TEXT, num_landmarks=SEQ, segment_means_seq_len=SEQ),
    _masked("yoso", **TEXT, use_expectation=True),
    _masked("ibert", **_ROBERTA),
    _masked("esm", **_ROBERTA, mask_token_id=3),
    _masked("ernie", **TEXT),
    _masked("luke", **_ROBERTA, entity_vocab_size=16, entity_emb_size=16),
    _masked("megatron-bert", **TEXT),
    hugging_face("layoutlm", "MaskedLM", _boxes, **TEXT),
    hugging_face("lilt", "TokenClassification", lambda: _boxes() | _tags(), **{**_ROBERTA, "hidden_size": 48}, channel_shrink_ratio=2),
    _masked("modernbert", **TEXT, **ENDS, cls_token_id=1, sep_token_id=2, local_attention=8),
    hugging_face(
        "canine",
        "SequenceClassification",
        _classes,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        local_transformer_stride=8,
        max_position_embeddings=64,
        downsampling_rate=2,
        num_hash_buckets=16,
    ),
    hugging_face(
        "perceiver",
        "MaskedLM",
        text,
        num_latents=8,
        d_latents=16,
        d_model=16,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=SEQ,
        qk_channels=16,
        v_channels=16,
    ),
    _masked(
        "reformer",
        attn_layers=["local", "local"],
        hidden_size=32,
        feed_forward_size=64,
        num_attention_heads=2,
        attention_head_size=16,
        vocab_size=VOCAB,
        axial_pos_embds=False,
        max_position_embeddings=64,
        local_attn_chunk_length=8,
        is_decoder=False,
    ),
    _masked("eurobert", **TEXT, num_key_value_heads=2, **ENDS),
    hugging_face(
        "gpt2",
        "SequenceClassification",
        _classes,
        name="gpt2 classifier",
        n_layer=2,
        n_embd=32,
        n_head=4,
        vocab_size=VOCAB,
        n_positions=64,
        **ENDS,
    ),
    hugging_face(
        "tapas",
        "MaskedLM",
        lambda: text() | {"token_type_ids": torch.zeros(BATCH, SEQ, 7, dtype=torch.long)},
        **TEXT,
        type_vocab_sizes=[3, 8, 8, 2, 8, 8, 10],
    ),
)
