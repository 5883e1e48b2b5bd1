#!/bin/sh
# What turns are worth to the kernel LM for a processor: sh experiments/kernel_lm/turns.sh FOLDER SEED
#
# Once for all seeds the policy that ships writes 16 kernels for each of 90 shapes that training may see. Then one
# policy is taught turns from these, and as a control another one the fastest of them alone; each writes 16 kernels for
# each of eight shapes that training never sees: in one turn, and the first also in four. SEED 0, 1, 2 is of the teaching
# and of what is drawn. turns.py in experiments/smollm2 compares.
set -eu
FOLDER=$1
SEED=$2
CUDAL2=${CUDAL2:-cudal2}
SHAPES=${SHAPES:-64_192_384,96_256_256,128_160_320,192_256_128,256_192_160,320_128_512,384_64_384,512_160_192}
QUICK="worker=quick neighbours=0"
ATTEMPTS=$FOLDER/attempts

write() { # FOLDER POLICY TURNS
    $CUDAL2 eval "$1" source=policy samples=16 "turns.count=$3" "shapes=$SHAPES" "policy.path=$2" "seed=$SEED" $QUICK
}

if [ ! -e "$ATTEMPTS" ]; then
    $CUDAL2 eval "$ATTEMPTS" source=policy samples=16 shapes=drawn shapes.count=90 'shapes.drawn.layouts=[tn]' \
        shapes.drawn.flop=5e7 $QUICK
fi
TAUGHT="recipe=kernel_lm_turns archive=$ATTEMPTS seed=$SEED verify=0"
$CUDAL2 sft $TAUGHT "run=$FOLDER/turns-$SEED" "corpus.turns.runs=[$ATTEMPTS]"
$CUDAL2 sft $TAUGHT "run=$FOLDER/single-$SEED" corpus.turns.runs=[]
write "$FOLDER/shipped-1-$SEED" shipped:cpu 1
write "$FOLDER/single-1-$SEED" "$FOLDER/single-$SEED" 1
write "$FOLDER/turns-1-$SEED" "$FOLDER/turns-$SEED" 1
write "$FOLDER/turns-4-$SEED" "$FOLDER/turns-$SEED" 4
