#!/bin/bash
# A real job under Slurm, one rank per GPU; options of sbatch first, then the job and its options as for `run`:
# sbatch --nodes 2 --ntasks-per-node 4 --gpus-per-node 4 validation/jobs/slurm.sh zero1 --model gpt2-xl --csv zero1.csv
#SBATCH --job-name=validation
#SBATCH --output=validation-%j.log
#SBATCH --time=00:20:00

set -euo pipefail
# load here whatever gives this site a Python with PyTorch and NCCL
cd "${SLURM_SUBMIT_DIR:?run this with sbatch}"
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${hosts%%$'\n'*}
# two jobs on one node rarely get the same
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
# one failing task ends the others; every task sees all GPUs of its node and takes the one of its local rank
exec srun --kill-on-bad-exit=1 --gpu-bind=none python -m validation run "$@"
