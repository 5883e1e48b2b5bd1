#!/bin/sh
# What cudal2 finds for the layers of a model on a GPU, and what that is worth in the model:
#     experiments/model/campaign.sh MODEL RUN [OPTION of generate.py measure]…
# KERNELS=6 a problem are judged, the best two timed against each other, and the winner is measured; what is surely
# faster than the fastest baseline is dispatched. ROWS=1,4,8,16,64,2048 are the batches and, last, the prompt's tokens;
# MERGED=--merged makes one product of q, k and v, and of gate and up; PYTHON=python3 is an interpreter that has cudal2's
# packages and transformers; TARGET=sm_90a.
set -eu
model=$1 run=$2 here=$(cd "$(dirname "$0")" && pwd)
shift 2
python=${PYTHON:-python3} rows=${ROWS:-1,4,8,16,64,2048}
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}"
asked="--batches ${rows%,*} --prompt ${rows##*,} ${MERGED:-}"
# shellcheck disable=SC2086  # these are several words
shapes=$("$python" "$here/generate.py" shapes "$model" $asked)
"$python" -m cudal2.cli campaign "shapes=$shapes" target="${TARGET:-sm_90a}" run="$run" 'methods=[evolution]' \
    kernels="${KERNELS:-6}" generation="${KERNELS:-6}" finalists=2 slice=32
# shellcheck disable=SC2086
"$python" "$here/generate.py" measure "$model" --export "$run/export" -o "$run/model.json" $asked "$@"
