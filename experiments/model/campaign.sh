#!/bin/sh
# What cudal2 finds for the layers of a model on a GPU, and what that is worth in the model: experiments/model/campaign.sh MODEL RUN
# Six kernels a problem: 24 problems, 144 verdicts and 72 measurements; then generate.py measure, for up to six minutes.
# ROWS=1,8,64,2048 searches fewer numbers of rows; PYTHON names an interpreter that has cudal2 and transformers.
set -eu
model=$1 run=$2 here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} rows=${ROWS:-1,4,8,16,64,2048}
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}"
shapes=$("$python" "$here/generate.py" shapes "$model" --batches "${rows%,*}" --prompt "${rows##*,}")
"$python" -m cudal2.cli campaign "shapes=$shapes" target="${TARGET:-sm_90a}" run="$run" 'methods=[evolution]' \
    kernels="${KERNELS:-6}" generation="${KERNELS:-6}" finalists=2 slice=32
"$python" "$here/generate.py" measure "$model" --export "$run/export" -o "$run/model.json" | tee "$run/model.txt"
