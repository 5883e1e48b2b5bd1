#!/bin/sh
# What turns are worth to the kernel LM for a processor: sh experiments/kernel_lm/turns.sh FOLDER SEED
#
# Once for all seeds the policy that ships writes 16 kernels for each of 90 shapes that training may see, and a policy that
# was taught from these writes 16 more for each of the first 60, in four turns: so it sees its own failures. Then, with
# each seed, one policy is taught turns from all of them, and as a control another one the fastest of them alone. Each
# writes 16 kernels for each of eight shapes that training never sees: in one turn, and the first also in four.
# compare.py shows them side by side.
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

attempt() { # SHAPES, and what writes them
    $CUDAL2 eval "$ATTEMPTS" source=policy samples=16 shapes=drawn "shapes.count=$1" 'shapes.drawn.layouts=[tn]' \
        shapes.drawn.flop=5e7 finalists=1 $QUICK "policy.path=$2" "turns.count=$3"
}

if [ ! -e "$ATTEMPTS" ]; then
    attempt 90 shipped:cpu 1
    $CUDAL2 sft recipe=kernel_lm_turns "archive=$ATTEMPTS" "corpus.turns.runs=[$ATTEMPTS]" corpus.turns.times=1 \
        corpus.turns.share=0.5 epochs=4 verify=0 "run=$FOLDER/first"
    attempt 60 "$FOLDER/first" 4
fi
TAUGHT="recipe=kernel_lm_turns archive=$ATTEMPTS seed=$SEED verify=0"
$CUDAL2 sft $TAUGHT "run=$FOLDER/turns-$SEED" "corpus.turns.runs=[$ATTEMPTS]"
$CUDAL2 sft $TAUGHT "run=$FOLDER/single-$SEED" corpus.turns.runs=[]
write "$FOLDER/shipped-1-$SEED" shipped:cpu 1
write "$FOLDER/single-1-$SEED" "$FOLDER/single-$SEED" 1
write "$FOLDER/turns-1-$SEED" "$FOLDER/turns-$SEED" 1
write "$FOLDER/turns-4-$SEED" "$FOLDER/turns-$SEED" 4
