#!/bin/sh
# What GRPO on layers that come again adds to the policy that ships: three training seeds beside each other on a machine of
# four GPUs, a GPU and a quarter of the cores each; the fourth GPU judges the policy before and the table meanwhile.
#
#   sh experiments/h200/learning/seeds.sh FOLDER MINUTES [KEY=VALUE of train]…
#   python experiments/h200/learning/first.py FOLDER/first-before FOLDER/first-table FOLDER/first-seed-0 FOLDER/first-seed-1 FOLDER/first-seed-2
#
# FOLDER/seed-N are the runs, which go on if they were begun. Each policy writes four kernels for each of the 42 layers that
# are kept apart, and one (grid-…) for each of the hundred shapes of the grid, sampled as it states. CUDAL2 is how cudal2 is
# called, PYTHON the interpreter.
set -eu
folder=$1 minutes=$2 here=$(cd "$(dirname "$0")" && pwd)
shift 2
cudal2=${CUDAL2:-cudal2}
layers=$("${PYTHON:-python}" "$here/../layers.py" apart)
share=$(($(nproc) / 4))
mkdir -p "$folder"

# on GPU COMMAND…: with that GPU alone and its share of the cores
on() {
    gpu=$1
    shift
    CUDA_VISIBLE_DEVICES=$gpu taskset -c $((gpu * share))-$((gpu * share + share - 1)) "$@"
}

# judged GPU NAME SEARCH-OPTION…: four kernels for each layer, then one for each shape of the grid
judged() {
    gpu=$1 name=$2
    shift 2
    on "$gpu" $cudal2 search "shapes=$layers" target=sm_90a run="$folder/first-$name" search.kernels=4 search.generation=4 \
        search.neighbours=0 worker.build_jobs=$share "$@" > "$folder/first-$name.txt" 2>&1
    on "$gpu" $cudal2 search shapes=sample target=sm_90a run="$folder/grid-$name" search.kernels=1 search.generation=1 \
        search.neighbours=0 worker.build_jobs=$share "$@" > "$folder/grid-$name.txt" 2>&1
}

learned() {
    seed=$1
    shift
    on "$seed" $cudal2 train experiment=h200_layers run="$folder/seed-$seed" seed="$seed" trainer.minutes="$minutes" \
        worker.build_jobs=$share "$@" > "$folder/seed-$seed.txt" 2>&1
    judged "$seed" "seed-$seed" search.method=policy search.prior=none policy.path="$folder/seed-$seed"
}

for seed in 0 1 2; do
    learned "$seed" "$@" &
done
judged 3 before search.method=policy search.prior=none
judged 3 table
wait
