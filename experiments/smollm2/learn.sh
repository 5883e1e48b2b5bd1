#!/bin/sh
# SmolLM2 before and after GRPO, on one GPU: right kernels, first sample and best of 16 on shapes that training never sees.
#
#   sh experiments/smollm2/learn.sh FOLDER lora|full SFT_MINUTES GRPO_MINUTES [KEY=VALUE of worker, such as worker.devices=[1]]
#
# The same command goes on where it was ended.
set -eu
folder=$1 weights=$2 sft=$3 grpo=$4
shift 4
case $weights in
lora) tuned="policy.lora.rank=32 policy.lora.alpha=32" sft_rate=2e-3 known_rate=4e-4 grpo_rate=3e-4 ;;
full) tuned="policy.lora.rank=0" sft_rate=1e-3 known_rate=2e-4 grpo_rate=3e-5 ;;
*) echo "learn.sh: $weights is neither lora nor full" >&2; exit 2 ;;
esac

# 16 samples for each of the first 16 of the hundred shapes.
write() {
    run=$1 model=$2
    shift 2
    cudal2 eval "$run" --source policy samples=16 --shapes sample --limit 16 policy=smollm2 policy.path="$model" \
        policy.dtype=bfloat16 prompt.template=instruct target=sm_90a worker=quick "$@"
}

cudal2 doctor
# Without quotes: the keys of the adapters are two words.
cudal2 sft recipe=smollm2 run="$folder/sft" $tuned learning_rate=$sft_rate tuning.minutes="$sft" verify=0
cudal2 sft recipe=smollm2_known run="$folder/known" policy.path="$folder/sft" $tuned learning_rate=$known_rate verify=0
write "$folder/before" "$folder/known" "$@"
cudal2 train experiment=smollm2_hgemm run="$folder/grpo" policy.path="$folder/known" $tuned \
    trainer.learning_rate=$grpo_rate trainer.save_steps=1 trainer.minutes="$grpo" trainer.steps=10000 "$@"
write "$folder/after" "$folder/grpo" "$@"
cudal2 report "$folder/before" "$folder/after" --searches --out "$folder/learnt.png"
