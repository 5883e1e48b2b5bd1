"""What a policy takes that fits no single GPU, as far as it can be seen on none."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

from cudal2.config import TrainConfig, load
from cudal2.files import asset
from cudal2.policy import vllm_engine
from cudal2.train import options

GB, GPU, GPUS = 1e9, 80e9, 8
QWEN = Qwen2Config(  # Qwen2.5-Coder-32B-Instruct, as its config.json states it
    vocab_size=152064,
    hidden_size=5120,
    intermediate_size=27648,
    num_hidden_layers=64,
    num_attention_heads=40,
    num_key_value_heads=8,
    max_position_embeddings=32768,
    tie_word_embeddings=False,
)


@pytest.fixture
def config() -> TrainConfig:
    return load("train", ["experiment=qwen2.5-coder-32b"], TrainConfig)


@pytest.fixture
def arguments(config, monkeypatch) -> dict:
    """What the trainer of one of eight processes is made with; vLLM and DeepSpeed are not here."""
    monkeypatch.setattr(options, "_require", lambda *_: None)
    monkeypatch.setattr(vllm_engine, "check", lambda: None)
    monkeypatch.setattr(options, "GRPOConfig", dict)
    monkeypatch.setenv("WORLD_SIZE", str(GPUS))
    return options.trl_options(config)


def test_a_step_of_the_large_experiment_is_shared_equally(config, arguments):
    assert config.target == "sm_90a"
    assert all(problem.m <= 2048 for problem in config.shapes.problems())
    batch = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] * GPUS
    assert batch == config.trainer.problems_per_step * config.trainer.group_size
    assert batch // GPUS % config.trainer.group_size == 0  # a process samples whole groups
    assert arguments["bf16"] and arguments["gradient_checkpointing"] and arguments["use_vllm"]


def test_trl_takes_the_large_experiments_arguments(arguments, monkeypatch, tmp_path):
    monkeypatch.delenv("WORLD_SIZE")
    made = GRPOConfig(**{**arguments, "deepspeed": None, "output_dir": str(tmp_path)})
    assert (made.vllm_mode, made.vllm_tensor_parallel_size, made.vllm_gpu_memory_utilization) == ("colocate", 4, 0.5)
    assert (made.vllm_max_model_length, made.vllm_enable_sleep_mode) == (32768, True)
    assert made.ddp_timeout_delta.total_seconds() > 1800


def test_the_large_experiment_fits_its_gpus(arguments):
    parallel, share = arguments["vllm_tensor_parallel_size"], arguments["vllm_gpu_memory_utilization"] * GPU
    with torch.device("meta"):
        weights = 2 * sum(parameter.numel() for parameter in Qwen2ForCausalLM(QWEN).parameters())
    assert weights == pytest.approx(65.5 * GB, rel=0.01)
    assert GPUS % parallel == QWEN.num_attention_heads % parallel == QWEN.num_key_value_heads % parallel == 0
    longest, completion = arguments["vllm_max_model_length"], arguments["max_completion_length"]
    assert 2 * completion < longest <= QWEN.max_position_embeddings
    token = QWEN.num_hidden_layers * QWEN.num_key_value_heads * 128 * 2 * 2 / parallel
    assert share - weights / parallel > 3 * GB + 4 * longest * token  # not only weights: four samples at their longest
    held = weights / GPUS + 0.5 * GB
    assert held + share < 0.9 * GPU
    checkpoints = QWEN.num_hidden_layers * longest * QWEN.hidden_size * 2
    logits = completion * QWEN.vocab_size * 2
    assert arguments["vllm_enable_sleep_mode"]
    assert held + checkpoints + 5 * logits + 10 * GB < 0.9 * GPU


@pytest.mark.parametrize("stage", [2, 3])
def test_the_shipped_deepspeed_configurations_leave_to_the_trainer_what_is_its(stage):
    plain = json.loads(Path(options.deepspeed_file(f"zero{stage}")).read_text())
    assert plain["zero_optimization"]["stage"] == stage
    # The trainer states these, and refuses to start where a file says otherwise.
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert plain[key] == "auto"


def test_deepspeed_configurations_are_named_or_a_path(tmp_path):
    own = tmp_path / "own.json"
    own.write_text("{}")
    assert options.deepspeed_file("") is None
    assert options.deepspeed_file(str(own)) == str(own)
    assert options.deepspeed_file("zero3") == str(asset("conf", "deepspeed", "zero3.json"))
    with pytest.raises(ValueError, match="zero3"):
        options.deepspeed_file("zero9")


def test_processes_that_cannot_share_the_weights_are_refused(config, monkeypatch):
    monkeypatch.setattr(options, "_require", lambda *_: None)
    monkeypatch.setattr(vllm_engine, "check", lambda: None)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="--num_processes"):
        options.trl_options(config)
    alone = load("train", ["experiment=qwen2.5-coder-32b", "policy.sampler=transformers"], TrainConfig)
    with pytest.raises(ValueError, match="torchrun"):
        options.trl_options(alone)


def test_a_checkpoint_in_shares_says_how_many_processes_it_wants(tmp_path):
    for rank in range(2):
        (tmp_path / "global_step4").mkdir(exist_ok=True)
        (tmp_path / f"global_step4/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    options.check_shares(tmp_path, 2)
    options.check_shares(None, 3)
    options.check_shares(tmp_path / "global_step4/whole", 3)
    with pytest.raises(ValueError, match="--nproc_per_node 2"):
        options.check_shares(tmp_path, 4)


ROWS, LENGTH = 4, 13


@pytest.fixture
def model():
    torch.manual_seed(0)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, **shape))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and masks, padded on the left, on the right, on both sides and not at all."""
    place = torch.arange(LENGTH)
    first, last = torch.tensor([4, 0, 3, 0])[:, None], torch.tensor([LENGTH, 9, 10, LENGTH])[:, None]
    return torch.randint(1, 40, (ROWS, LENGTH)), ((place >= first) & (place < last)).long()


def learnt(model, ids, mask) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What the model says after each token that is no padding, and the gradients of that."""
    model.zero_grad()
    said = model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)[mask.bool()]
    said[:, 5].sum().backward()
    return said.detach(), [weight.grad.clone() for weight in model.parameters() if weight.requires_grad]


@pytest.mark.parametrize("adapted", [False, True])
def test_rows_padded_on_either_side_need_no_mask(model, adapted, monkeypatch):
    if adapted:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    ids, mask = rows()
    expected = learnt(model, ids, mask)
    masks = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watched(*given, attn_mask=None, **named):
        masks.append(attn_mask)
        return plain(*given, attn_mask=attn_mask, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with options.unmasked(model):
        found = learnt(model, ids, mask)
    assert masks == [None] * 3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    again = learnt(model, ids, mask)
    assert masks[-1] is not None
    torch.testing.assert_close(again, expected)


def test_rows_without_padding_and_without_a_mask_stay_as_they_are(model):
    ids, _ = rows()
    expected = model(input_ids=ids).logits
    with options.unmasked(model):
        torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)


def test_layers_may_be_computed_again_once_the_model_is_as_it_was(model):
    ids, mask = rows()
    _, expected = learnt(model, ids, mask)
    model.gradient_checkpointing_enable()
    model.zero_grad()
    model.train()
    with options.attention():
        with options.unmasked(model):
            said = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.log_softmax(-1)[mask.bool()]
        said[:, 5].sum().backward()
    found = [weight.grad for weight in model.parameters()]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_fused_layers_say_and_learn_the_same(model):
    ids, mask = rows()
    expected = learnt(model, ids, mask)
    options.fuse(model)
    with options.unmasked(model):
        torch.testing.assert_close(learnt(model, ids, mask), expected, atol=1e-5, rtol=1e-4)
