#!/bin/sh
# GRPO of SmolLM2 on one GPU, and what it changes: right kernels, first sample and best of 16 on shapes that training
# never sees, before and after. The same command goes on where it was ended.
#
#   sh experiments/smollm2/learn.sh FOLDER POLICY lora|best|full SEED STEPS [KEY=VALUE of worker]
#
# lora and best train adapters: lora for the mean of the samples, best for the best of four. full trains all weights.
# All of one POLICY go into one FOLDER, and share what was measured before.
set -eu
folder=$1 policy=$2 weights=$3 seed=$4 steps=$5
shift 5
case $weights in
lora) tuned="policy.lora.rank=32 policy.lora.alpha=32" rate=1e-4 ;;
best) tuned="policy.lora.rank=32 policy.lora.alpha=32 trainer.algorithm=best_of trainer.options.k=4" rate=1e-4 ;;
full) tuned="policy.lora.rank=0" rate=1e-5 ;;
*) echo "learn.sh: $weights is none of lora, best, full" >&2; exit 2 ;;
esac

# 16 samples for each of the first 16 of the hundred shapes.
write() {
    run=$1 model=$2
    shift 2
    cudal2 eval "$run" source=policy samples=16 shapes=sample limit=16 policy=smollm2 policy.path="$model" \
        policy.dtype=bfloat16 prompt.template=instruct target=sm_90a worker=quick worker.run_seconds=5 "$@"
}

write "$folder/before" "$policy" "$@"
# Without quotes: these keys are several words.
cudal2 train experiment=smollm2_hgemm run="$folder/$weights-$seed" policy.path="$policy" $tuned seed="$seed" \
    trainer.learning_rate=$rate trainer.save_steps=1 trainer.steps="$steps" "$@"
write "$folder/after-$weights-$seed" "$folder/$weights-$seed" "$@"
cudal2 report searches "$folder/before" "$folder/after-$weights-$seed" out="$folder/$weights-$seed.png"
