#!/bin/sh
# SmolLM2 learns to write kernels, for so many minutes, then which are known to be fast, to the end of that recipe, on one
# GPU; the same command goes on where it was ended.
#
#   sh experiments/smollm2/teach.sh FOLDER lora|full MINUTES
set -eu
folder=$1 weights=$2 minutes=$3
case $weights in
lora) tuned="policy.lora.rank=32 policy.lora.alpha=32" rate=2e-3 known_rate=4e-4 ;;
full) tuned="policy.lora.rank=0" rate=1e-3 known_rate=2e-4 ;;
*) echo "teach.sh: $weights is neither lora nor full" >&2; exit 2 ;;
esac

# Without quotes: the keys of the adapters are two words.
cudal2 sft recipe=smollm2 run="$folder/sft" $tuned learning_rate=$rate tuning.minutes="$minutes" verify=0
cudal2 sft recipe=smollm2_known run="$folder/known" policy.path="$folder/sft" $tuned learning_rate=$known_rate verify=0
