#!/bin/sh
# What GRPO on problems that come again adds to the policy that ships, beside the table and evolution from it: three
# training seeds on as many GPUs as there are, each with its share of the cores.
#
#   sh experiments/h200/learning/seeds.sh FOLDER MINUTES [KEY=VALUE of train]…
#   cd FOLDER && python …/first.py first-before first-table first-seed-0 first-seed-1 first-seed-2
#   cd FOLDER && python …/first.py four-evolution four-before four-seed-0 four-seed-1 four-seed-2
#
# A GPU takes the next piece of work when it is free; what a killed script left is gone on with by the same command. FOLDER/seed-N are the
# runs, FOLDER/policy-N.tar what they taught, in bf16. `first` is one kernel for each of 168 layers that are kept apart
# and of 100 shapes off the lattice, sampled as the policy states; `four` is four kernels for 42 layers and 42 shapes,
# of evolution 16. `table` is evolution's first kernel, `likeliest` what the policy before writes at a temperature of 0.05.
# Each seed trains with a cache of its own. CUDAL2 is how cudal2 is called, PYTHON the interpreter, GPUS their number,
# POLICY another policy than the one that ships, PIECES the pieces of work, if not these. `taught-N` is the policy taught
# once more by recipe=hopper_any_known with seed N (LINES: so many `new_lines`), and its first kernel, of its 64 likeliest
# plans the one that the cost model chooses; `taught-N-four`, after it, four kernels of them. `nearest` is the table's first without the model, and
# `layers` judges the best of `evolution` on the layers once more, as every evaluation does.
set -eu
folder=$1 minutes=$2 here=$(cd "$(dirname "$0")" && pwd)
shift 2
python=${PYTHON:-python}
cudal2=${CUDAL2:-cudal2}
gpus=${GPUS:-$(nvidia-smi -L | wc -l)}
share=$(($(nproc) / gpus))
pieces=${PIECES:-seed-0 seed-1 seed-2 evolution before table likeliest}
policy=${POLICY:+policy.path=$POLICY}
many=$("$python" "$here/../layers.py" apart 12),off-lattice
few=$("$python" "$here/../layers.py" apart),off-lattice
rm -rf "$folder/taken"
mkdir -p "$folder/taken"

# on GPU COMMAND…: with that GPU alone and its share of the cores
on() {
    card=$1
    shift
    CUDA_VISIBLE_DEVICES=$card taskset -c $((card * share))-$((card * share + share - 1)) "$@"
}

# searched GPU NAME SEARCH-OPTION…
searched() {
    card=$1 run=$2
    shift 2
    on "$card" $cudal2 search target=sm_90a run="$folder/$run" search.neighbours=0 worker.build_jobs=$share \
        worker.cache="$folder/cache" "$@" > "$folder/$run.txt" 2>&1
}

# four GPU NAME [OPTION]…, first GPU NAME [OPTION]…: what a policy writes
four() {
    judge=$1 writer=$2
    shift 2
    searched "$judge" "four-$writer" "shapes=$few" shapes.count=42 search.method=policy search.prior=none \
        search.kernels=4 search.generation=4 "$@"
}

first() {
    judge=$1 writer=$2
    shift 2
    searched "$judge" "first-$writer" "shapes=$many" search.method=policy search.prior=none \
        search.kernels=1 search.generation=1 "$@"
}

# judged GPU NAME [OPTION]…
judged() {
    four "$@" && first "$@"
}

# learned GPU SEED [KEY=VALUE of train]…
learned() {
    pupil=$1 seed=$2
    shift 2
    on "$pupil" $cudal2 train experiment=h200_layers run="$folder/seed-$seed" seed="$seed" trainer.minutes="$minutes" \
        worker.build_jobs=$share worker.cache="$folder/cache-$seed" $policy "$@" > "$folder/seed-$seed.txt" 2>&1 &&
        "$python" "$here/half.py" "$folder/seed-$seed" "$folder/policy-$seed.tar" &&
        judged "$pupil" "seed-$seed" policy.path="$folder/seed-$seed"
}

# taught GPU SEED
taught() {
    on "$1" $cudal2 sft recipe=hopper_any_known start="${POLICY:-data/policy/sm_90a}" run="$folder/taught-$2" seed="$2" \
        new_lines="${LINES:-0}" \
        worker.build_jobs=$share > "$folder/taught-$2.txt" 2>&1 &&
        "$python" "$here/half.py" "$folder/taught-$2" "$folder/policy-$2.tar" &&
        first "$1" "taught-$2" policy.path="$folder/taught-$2" search.rerank=64
}

# all GPU [KEY=VALUE of train]…: one piece after the other, until none is left
all() {
    gpu=$1
    shift
    for piece in $pieces; do
        mkdir "$folder/taken/$piece" 2> /dev/null || continue
        case $piece in
            seed-*) learned "$gpu" "${piece#seed-}" "$@" ;;
            taught-*-four)
                one=${piece%-four}
                four "$gpu" "$one" policy.path="$folder/$one" search.rerank=64
                ;;
            taught-*) taught "$gpu" "${piece#taught-}" ;;
            layers)
                on "$gpu" $cudal2 eval "$folder/four-evolution" "shapes=${few%,off-lattice}" target=sm_90a worker=sweep \
                    neighbours=0 worker.build_jobs=$share worker.cache="$folder/cache" > "$folder/layers.txt" 2>&1
                ;;
            before) judged "$gpu" before $policy ;;
            evolution)
                searched "$gpu" four-evolution "shapes=$few" shapes.count=42 search.kernels=16
                ;;
            nearest)
                searched "$gpu" first-nearest "shapes=$many" search.kernels=1 search.generation=1 search.order=nearest
                ;;
            table) searched "$gpu" first-table "shapes=$many" search.kernels=1 search.generation=1 ;;
            likeliest)
                searched "$gpu" first-likeliest "shapes=$many" search.method=policy search.prior=none \
                    search.kernels=1 search.generation=1 policy.temperature=0.05 $policy
                ;;
        esac || echo "$piece failed; $folder has its output"
    done
}

number=0
while [ "$number" -lt "$gpus" ]; do
    all "$number" "$@" &
    number=$((number + 1))
done
wait
