#!/bin/sh
# What turns are worth: the policy of the processor's kernels trained with 1, 4 and 2 turns at the same number of judged
# kernels, and evaluated in as many, before and after, on shapes that training never sees. Learns on a GPU; the
# processor judges. The same command goes on where it was ended.
#
#   [POLICY=…] sh experiments/smollm2/turns.sh FOLDER SEED STEPS [KEY=VALUE of worker]
set -eu
folder=$1 seed=$2 steps=$3
shift 3
rest=$* begin=${POLICY:-shipped:smollm2_cpu}
held_out=64_192_384,96_256_256,128_160_320,192_256_128,256_192_160,320_128_512,384_64_384,512_160_192
seen='[64_256_384,96_192_256,128_128_256,128_256_320,160_192_256,160_320_128,192_128_192,192_384_160,256_128_256,256_256_128,256_320_160,320_192_256,320_256_96,384_128_256,384_256_128,512_128_128]'
policy="target=cpu policy=smollm2 policy.dtype=bfloat16 prompt.template=instruct policy.max_new_tokens=2600"
# A kernel is timed while compilers run on the other cores.
worker="worker=quick worker.threads=4 worker.batch_ms=2 worker.timing_seconds=0.1 worker.run_seconds=5"

# 16 kernels a shape: 16 conversations of one turn, or four of four.
write() {
    cudal2 eval "$folder/$1" shapes=$held_out source=policy samples=16 turns.count="$3" $policy policy.path="$2" $worker $rest
}

for turns in 1 4 2; do
    write "turns-$turns-before" "$begin" $turns
    cudal2 train run="$folder/turns-$turns-$seed" $policy policy.path="$begin" policy.lora.rank=32 policy.lora.alpha=32 \
        seed="$seed" reward.octaves=1 shapes.names="$seen" turns.count=$turns trainer.group_size=$((32 / turns)) \
        trainer.problems_per_step=2 trainer.scale_rewards=batch trainer.micro_batch=4 trainer.learning_rate=1e-4 \
        trainer.steps="$steps" trainer.save_steps=4 $worker $rest
    write "turns-$turns-after-$seed" "$folder/turns-$turns-$seed" $turns
done
