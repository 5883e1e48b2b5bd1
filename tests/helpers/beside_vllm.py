"""What vLLM says beside an export, if one is on the path, and who multiplied: argv[1] is a model. Prints JSON."""

import json
import sys
import warnings

warnings.simplefilter("ignore")


def main() -> dict:
    import torch
    import vllm

    small = {"max_model_len": 128, "max_num_batched_tokens": 128, "max_num_seqs": 4, "enable_prefix_caching": False}
    engine = vllm.LLM(sys.argv[1], dtype="float16", **small)
    prompts = [{"prompt_token_ids": [1, *range(start, start + 9)]} for start in (5, 50, 200)]
    drawn = vllm.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    said = [one.outputs[0].token_ids for one in engine.generate(prompts, drawn, use_tqdm=False)]
    found: dict = {"said": [list(one) for one in said], "torch": torch.__version__}
    if package := sys.modules.get("cudal2_kernels"):
        routed = sys.modules.get("cudal2_kernels.vllm")
        found["layers"] = routed.layers if routed else []
        found["calls"] = dict(package.library.calls) if package.library else {}
    engine.llm_engine.engine_core.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
