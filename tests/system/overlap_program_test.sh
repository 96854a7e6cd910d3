#!/bin/bash
# Between processes, too, overlap changes no bit; and a run that trains both ways in turn ends well.
# Usage: overlap_program_test.sh FOLDER_OF_THE_TEST_PROGRAMS
set -u
tiny='model { layers: 2 hidden: 64 heads: 2 ffn: 96 vocabulary: 256 sequence: 64 tied_embeddings: true }'
for layout in 'data: 4' 'data: 2 pipeline: 2' 'data: 2 tensor: 2 sequence_parallel: true' \
  'pipeline: 2 data: 2 schedule: ZERO_BUBBLE' \
  'pipeline: 2 data: 2 schedule: INTERLEAVED virtual_stages: 2'; do
  layers=2
  [[ $layout != *INTERLEAVED* ]] || layers=4
  timeout 60 mpirun -np 4 "$1/overlap_program" 2 "$tiny model { layers: $layers } parallel { $layout }" ||
    exit 1
done
