"""What vLLM says beside an export, if one is on the path, and who multiplied: argv[1] is a model, argv[2:] are types of
numbers, of which only float16 is compiled, for that takes half a minute. Prints JSON."""

import json
import sys
import warnings

SMALL = {"max_model_len": 128, "max_num_batched_tokens": 128, "max_num_seqs": 4, "enable_prefix_caching": False}
PROMPTS = [[1, *range(start, start + 9)] for start in (5, 50, 200)]
DRAWN = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def main() -> dict:
    import vllm

    found: dict = {"said": {}}
    for dtype in sys.argv[2:]:
        engine = vllm.LLM(sys.argv[1], dtype=dtype, enforce_eager=dtype != "float16", **SMALL)
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        answers = engine.generate(prompts, vllm.SamplingParams(**DRAWN), use_tqdm=False)
        found["said"][dtype] = [list(one.outputs[0].token_ids) for one in answers]
        engine.llm_engine.engine_core.shutdown()
        del engine
    if package := sys.modules.get("cudal2_kernels"):
        found["layers"] = sys.modules["cudal2_kernels.patch"].layers
        found["calls"] = dict(package.library.calls) if package.library else {}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main()))
