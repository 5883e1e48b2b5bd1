#!/bin/sh
# What each reward teaches: sh experiments/kernel_lm/rewards.sh FOLDER SEED
#
# The policy that ships for a processor learns on the demo's six shapes, so many STEPS of 16 kernels by each reward. Then
# each policy, and the one before as a control, writes 16 kernels for each of these shapes. Run it alone on two cores.
# compare.py shows them side by side.
set -eu
FOLDER=$1
SEED=$2
STEPS=${STEPS:-20}
CUDAL2=${CUDAL2:-cudal2}

write() { # FOLDER POLICY
    $CUDAL2 eval "$1" source=policy samples=16 shapes=demo finalists=1 neighbours=0 worker=quick "policy.path=$2" "seed=$SEED"
}

write "$FOLDER/before-$SEED" shipped:cpu
for reward in log paper milestone; do
    learnt=$FOLDER/learnt/$reward-$SEED
    $CUDAL2 train experiment=demo "reward=$reward" "seed=$SEED" trainer.minutes=0 "trainer.steps=$STEPS" "run=$learnt"
    write "$FOLDER/$reward-$SEED" "$learnt"
done
