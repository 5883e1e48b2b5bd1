#!/bin/sh
# Which reward teaches most in equally many steps: sh experiments/demo/rewards.sh FOLDER STEPS
#
# The policy for a processor learns by GRPO as in `make demo`, but for so many steps, with each reward and three seeds:
# `log` (the logarithm of the speedup), `paper` (CUDA-L2's, the speedup itself) and `milestone`. Then each writes 16
# kernels for each of the six shapes, as `before` does, the policy that ships. What was judged once is recalled.
#
#   python experiments/kernel_lm/compare.py FOLDER/wrote-before-? FOLDER/wrote-log-? FOLDER/wrote-paper-? FOLDER/wrote-milestone-?
set -eu
folder=$1 steps=$2
cudal2=${CUDAL2:-cudal2}

write() { # NAME SEED [KEY=VALUE]…
    name=$1 seed=$2
    shift 2
    $cudal2 eval "$folder/wrote-$name-$seed" source=policy samples=16 shapes=demo seed="$seed" worker=quick neighbours=0 \
        worker.cache="$folder/cache" "$@"
}

for seed in 0 1 2; do
    write before $seed
    for reward in log paper milestone; do
        $cudal2 train experiment=demo reward=$reward seed=$seed run="$folder/$reward-$seed" trainer.minutes=0 \
            trainer.steps="$steps" worker.cache="$folder/cache"
        write $reward $seed policy.path="$folder/$reward-$seed"
    done
done
