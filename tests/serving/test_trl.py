"""TRL's own trainer and script learn from a served judge; a fault is no reward, and a server that is away ends them."""

import contextlib
import json
import socket
import threading
import time

import pytest
from served import serving

from cudal2.serving import trl
from cudal2.serving.client import ADDRESS, NoService

PROBLEM = "64_128_256"
GOOD, BETTER = "int hgemm() { return 1; } // fast", "int hgemm() { return 1; } // fast fast"


@pytest.fixture
def up(tmp_path, monkeypatch):
    trl.client.cache_clear()
    with serving(tmp_path) as up:
        monkeypatch.setenv(ADDRESS, up.server.url)
        trl.client.cache_clear()
        yield up
    trl.client.cache_clear()


def chat(text):
    return [{"role": "assistant", "content": text}]


def test_rewards_are_the_servers_in_order(up):
    texts = [GOOD, "nothing", BETTER, "int hgemm() { return 2; } // bug"]
    logged = {}
    found = trl.reward(texts, problem=[PROBLEM] * 4, prompts=["Write!"] * 4, log_metric=logged.__setitem__)
    assert found[2] > found[0] > 0 > found[3] > found[1] == -1.0
    assert logged == {"right": 0.5, "speedup": (2.0 + 4.0) / 4}
    assert trl.reward([chat(one) for one in texts], problem=[PROBLEM] * 4, completion_ids=[]) == found
    assert {one.origin.prompt for one in up.archive.samples("serve")} == {"Write!", ""}


def test_an_answer_of_ten_megabytes_and_one_of_odd_characters_end_no_training(up):
    found = trl.reward(["\ud800" + "é" * 10_000_000, f"{'x' * 10_000_000}\n{GOOD}"], problem=[PROBLEM] * 2)
    assert found[0] == -1.0 and found[1] > 0
    kernels = trl.Kernels()
    kernels.reset(problem=PROBLEM)
    assert "no kernel" in kernels.submit("é" * 10_000_000) and kernels.get_reward() == -1.0


def test_a_judge_that_dies_in_the_middle_is_waited_for_and_nothing_is_judged_twice(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv(ADDRESS, f"http://127.0.0.1:{port}")
    trl.client.cache_clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(tmp_path, f"port={port}"))
        before = trl.reward([GOOD], problem=[PROBLEM])
        stack.close()
        found = []
        asks = threading.Thread(target=lambda: found.extend(trl.reward([BETTER, GOOD], problem=[PROBLEM] * 2)))
        asks.start()
        time.sleep(0.5)
        with serving(tmp_path, f"port={port}") as again:
            asks.join(30)
            assert found[1:] == before and found[0] > found[1]
            assert again.pool.judged == [f"{BETTER}\n"] and len(again.samples) == 3
    trl.client.cache_clear()


def test_a_fault_is_no_reward_and_a_batch_of_faults_ends_the_training(up, caplog):
    fault = GOOD + " fault"
    assert trl.reward([GOOD, fault], problem=[PROBLEM] * 2)[1] is None
    assert "1 of 2 kernels have no verdict" in caplog.text and "Plug it in" in caplog.text
    with pytest.raises(NoService, match="Plug it in"):
        trl.reward([fault, fault], problem=[PROBLEM] * 2)
    assert trl.reward([], problem=[]) == []


def test_rows_carry_what_the_reward_needs(up):
    (row,) = trl.prompts([PROBLEM])
    (bare,) = trl.prompts([PROBLEM], chat=False)
    assert row["problem"] == bare["problem"] == "64_128_256_tn_f32"
    assert row["prompt"] == [{"role": "user", "content": bare["prompt"]}] and "M=64" in bare["prompt"]
    with pytest.raises(ValueError, match="M_N_K"):
        trl.prompts(["64"])


def test_the_best_submission_counts(up):
    kernels = trl.Kernels()
    assert "M=64" in kernels.reset(problem=PROBLEM, prompt="ignored") and kernels.get_reward() == -1.0
    assert "correct" in kernels.submit(BETTER)
    best = kernels.get_reward()
    kernels.submit(GOOD)
    assert kernels.get_reward() == best > 0
    kernels.reset(problem=PROBLEM)
    assert kernels.get_reward() == -1.0


def test_a_fault_ends_no_rollout_but_leaves_it_without_a_reward(up, caplog):
    kernels = trl.Kernels()
    kernels.reset(problem=PROBLEM)
    kernels.submit(GOOD)
    assert kernels.submit(GOOD + " fault") == trl.FAILED
    assert kernels.get_reward() is None and "Plug it in" in caplog.text
    kernels.reset(problem=PROBLEM)
    kernels.submit(GOOD)
    assert kernels.get_reward() > 0


def test_a_server_that_is_away_ends_the_training(up):
    kernels = trl.Kernels()
    up.queue.close()
    up.server.end()
    up.server.server_close()
    kernels._client.patience = 0.0
    with pytest.raises(NoService, match=r"Start `cudal2 serve`|Start it again"):
        kernels.reset(problem=PROBLEM)


@pytest.mark.slow
def test_trls_own_script_trains_with_the_reward(up, tmp_path):
    from datasets import Dataset
    from fakes import save_policy
    from trl import DatasetMixtureConfig, GRPOConfig, ModelConfig
    from trl.scripts import grpo

    policy, rows = save_policy(tmp_path / "policy"), tmp_path / "rows"
    rows.mkdir()
    Dataset.from_list([{"prompt": "M int", "problem": PROBLEM}] * 4).to_json(rows / "train.jsonl")
    options = GRPOConfig(
        str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=8, num_generations=8, max_completion_length=6,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    arguments = grpo.GRPOScriptArguments(dataset_name=str(rows), reward_funcs=["cudal2.serving.trl.reward"])
    grpo.main(arguments, options, ModelConfig(str(policy), dtype="float32"), DatasetMixtureConfig())
    assert len(up.samples) == 16 and (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.slow
def test_trls_trainer_calls_the_tool(up, tmp_path):
    """A model that says what it is told: it submits a kernel, sees the verdict, submits a better one and ends."""
    import tiny_chat
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    words = tiny_chat.words([GOOD, BETTER])
    words.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    words.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    words.eos_token, words.pad_token, words.chat_template = "<|im_end|>", "</s>", qwen3_chat_template
    model = AutoModelForCausalLM.from_pretrained(tiny_chat.save(tmp_path / "model", [GOOD]))
    model.resize_token_embeddings(len(words))
    seen = []

    class Told(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *_, **__):
            said = []
            for number, ids in enumerate(prompt_ids):
                text = words.decode(ids)
                turn = text.count("<tool_response>")
                seen.append((turn, text))
                code = GOOD if turn == 0 or number else BETTER
                call = json.dumps({"name": "submit", "arguments": {"code": code}})
                answer = f"<tool_call>\n{call}\n</tool_call>" if turn < 2 else "Done."
                said.append(words(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"])
            return said, None

        def _calculate_rewards(self, *all_, **named):
            found = super()._calculate_rewards(*all_, **named)
            self.found = found[:, 0].tolist()
            return found

    options = GRPOConfig(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, num_generations=2, report_to=[],
        max_completion_length=2000, use_cpu=True, bf16=False, save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "problem": PROBLEM}] * 2)
    trainer = Told(model, args=options, train_dataset=rows, processing_class=words, environment_factory=trl.Kernels)
    trainer.train()
    assert trainer.found[0] > trainer.found[1] > 0 and len(up.samples) == 4
    assert any(turn and "correct" in text for turn, text in seen) and "submit" in seen[0][1]
