"""Jobs of frameworks that are refused: unknown flags, flags that contradict each other, YAML that would fill memory, recipes of another version."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command, commands

from tests.regista.refusals.refusal import assert_refused

BASE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16"
AT = ("--cluster", "dgx-h100:1")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--hidden-sizes 4096", r"unknown: --hidden-sizes \(did you mean --hidden-size\?\)"),
        ("--fp16", "--bf16 and --fp16 contradict"),
        ("--num-layers 24", "--num-layers stands twice, with 32 and 24"),
        ("--use-flash-attn --attention-backend unfused", "--use-flash-attn and --attention-backend unfused contradict"),
        ("--overlap-param-gather", "--overlap-param-gather without --use-distributed-optimizer"),
        ("--num-query-groups 8", "--num-query-groups without --group-query-attention"),
        ("--swiglu --squared-relu", "--swiglu and --squared-relu contradict"),
        ("--recompute-activations --recompute-granularity full --recompute-method uniform", "contradict"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 --pipeline-model-parallel-layout Et*16|t*16L",
            "contradict each other: each says which layers a stage has",
        ),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*16|t*15L", "31 layers in 2 chunks; the model has 32"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*99999|tL", "more than 16384 letters"),
        ("--tensor-model-parallel-size 3", r"does not divide the 8 devices"),
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size = 'two'; a whole number"),
        ("--optimizer muon", "--optimizer 'muon' is not predicted; known are adam"),
        ("--recompute-granularity full", "--recompute-method ''; uniform or block"),
        ("--tokenizer-type HuggingFaceTokenizer", "--vocab-size is missing, .* give --vocab N"),
        ("--global-batch-size=7", "stands twice"),
    ],
)
def test_a_flag_that_is_unknown_impossible_or_contradicts_another_is_refused(
    command: Command, tmp_path: Path, more: str, says: str
) -> None:
    (tmp_path / "job.args").write_text(f"{BASE} {more}")
    assert_refused(command, tmp_path, "advise", tmp_path / "job.args", *AT, says=says)


def _bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels))]
    return "\n".join([*lines, "MODEL_ARGS: {}"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_bomb(10), r"more than 16 references \(\*name\); write the values out"),
        ("MODEL_ARGS: " + "[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("MODEL_ARGS:\n" + "".join(f"{'  ' * i}a:\n" for i in range(1, 100)), "nested deeper than 64 levels"),
        ("MODEL_ARGS:\n  --num-layers: 2\n  --num-layers: 4\n", "--num-layers stands twice"),
        ("MODEL_ARGS: !!python/object/apply:os.system [ls]", "not a readable YAML file"),
        ("MODEL_ARGS: [--num-layers, 2]", "MODEL_ARGS and ENV_VARS are tables"),
        ("MODEL_ARGS: {--num-layers: ${LAYERS}, --hidden-size: 4, --num-attention-heads: 2}", "not a readable YAML file"),
        (
            "MODEL_ARGS:\n  --num-layers: $LAYERS\n  --hidden-size: 4\n  --num-attention-heads: 2",
            "--num-layers = '.LAYERS'; a whole number",
        ),
        ("ConfigContainer:\n  model: {}\nperf_matrix: {}\n", "a table of several recipes, of another version of Megatron-Bridge"),
        ("model: {}\ntrainers: {}\n", r"unknown tables \['trainers'\]"),
        ("model: {seq_length: 4096}\ndataset: {sequence_length: 8192}\n", "dataset.sequence_length = 8192, and another table says 4096"),
        ("model: {hidden_size: 4096}\n", "num-attention-heads, num-layers are missing; .* --family NAME"),
        ("mixed_precision: bf16_with_int3\nmodel: {}\n", "'bf16_with_int3' is unknown"),
        ("steps: 3\n", r"neither MODEL_ARGS \(Megatron-LM\) nor model and train"),
        ("- 1\n", "no table at its top"),
    ],
)
def test_a_yaml_that_is_no_job_is_refused(command: Command, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert_refused(command, tmp_path, "advise", tmp_path / "job.yaml", *AT, says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((BASE,), "do not say on which devices they run; give --cluster"),
        ((BASE, *AT, "--seconds", "0"), "--seconds 0.0; more than 0"),
        ((BASE, *AT, "--family", "llama9"), "family 'llama9' is unknown"),
        ((BASE, "--cluster", "local:2"), "no constants for a cpu"),
        (("nothing.toml",), "no such file"),
        (("--job.config_file other.toml", *AT), "arguments name no other file"),
        (("jobs.csv",), "a CSV holds many jobs; regista predict reads them"),
        ((BASE.replace("64", "63"), *AT), "global_batch 63 is no multiple of dp 8"),
        ((BASE, *AT, "-o", "no/such/folder/out.html"), "folder"),
    ],
)
def test_options_that_cannot_be_are_refused(command: Command, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    assert_refused(command, tmp_path, "advise", *arguments, says=says)
