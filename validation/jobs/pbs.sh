#!/bin/bash
# A real job under PBS with the mpiexec of PALS, as on Polaris, one rank per GPU; options of qsub first, then the job as for `run`:
# qsub -l select=2:ngpus=4:mpiprocs=4 -l walltime=00:20:00 -j oe -- "$PWD/validation/jobs/pbs.sh" ddp --model gpt2-large --csv ddp.csv

set -euo pipefail
# load here whatever gives this site a Python with PyTorch and NCCL; some sites ask for -l filesystems, too
cd "${PBS_O_WORKDIR:?run this with qsub}"
n_ranks=$(wc -l < "$PBS_NODEFILE")
n_nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
# two jobs on one node rarely get the same
MASTER_PORT=$((20000 + ${PBS_JOBID%%.*} % 20000))
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS=1
exec mpiexec -n "$n_ranks" --ppn "$((n_ranks / n_nodes))" \
    --env MASTER_ADDR="$MASTER_ADDR" --env MASTER_PORT="$MASTER_PORT" python -m validation run "$@"
