#!/bin/sh
# The shipped policy for processors learns on the demo's shapes, 16 kernels a step: by TRL's own GRPO script from
# `cudal2 serve` (trl), or by `cudal2 train` (ours). Leaves FOLDER/trl-SEED.log, or the run FOLDER/ours-SEED.
#
#   sh experiments/trl/learn.sh FOLDER SEED trl|ours STEPS [KEY=VALUE of worker]
set -eu
folder=$1 seed=$2 arm=$3 steps=$4
shift 4
mkdir -p "$folder"
if [ "$arm" = ours ]; then
    exec cudal2 train experiment=demo run="$folder/ours-$seed" seed="$seed" trainer.minutes=0 trainer.steps="$steps" "$@"
fi

port=$((8900 + seed))
cudal2 serve run="$folder/judge-$seed" port=$port prompt=kernel_lm batch=16 "$@" > "$folder/judge-$seed.log" 2>&1 &
judge=$!
trap 'kill $judge' EXIT
export CUDAL2_JUDGE=http://127.0.0.1:$port
until curl -sf "$CUDAL2_JUDGE/health" > /dev/null; do sleep 1; kill -0 $judge; done
python "$(dirname "$0")/rows.py" "$folder/rows-$seed"
trl grpo --model_name_or_path data/policy/cpu --dtype float32 --dataset_name "$folder/rows-$seed" \
    --reward_funcs cudal2.serving.trl.reward --output_dir "$folder/trl-$seed" --seed "$seed" --max_steps "$steps" \
    --num_generations 8 --per_device_train_batch_size 16 --gradient_accumulation_steps 1 --learning_rate 1e-3 \
    --lr_scheduler_type constant --max_completion_length 512 --use_cpu true --bf16 false \
    --loss_type grpo --gradient_checkpointing false --logging_steps 1 --report_to none --save_strategy no --disable_tqdm true \
    > "$folder/trl-$seed.log" 2>&1
