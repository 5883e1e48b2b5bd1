#!/bin/sh
# Which reward teaches most, at an equal number of kernels: sh experiments/kernel_lm/rewards.sh FOLDER SEED
#
# The demo with each of the rewards, 24 steps of 16 kernels for a processor, and then 16 kernels for each of its six
# shapes. compare.py shows them side by side.
set -eu
FOLDER=$1
SEED=$2
CUDAL2=${CUDAL2:-cudal2}

for name in log paper milestone; do
    $CUDAL2 train experiment=demo "run=$FOLDER/trained-$name-$SEED" "seed=$SEED" "reward=$name" trainer.minutes=0 \
        trainer.steps=24 neighbours=0
    $CUDAL2 eval "$FOLDER/$name-$SEED" source=policy samples=16 shapes=demo "policy.path=$FOLDER/trained-$name-$SEED" \
        "seed=$SEED" worker=quick neighbours=0
done
