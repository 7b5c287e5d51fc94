#!/bin/bash
# Trains under SLURM, over as many time limits as it takes: sbatch examples/train_slurm.sh /data/imagenet/train --epochs 90
#
# Options of sbatch win over those here: sbatch --nodes=8 --time=24:00:00 --partition=gpu examples/train_slurm.sh ...
#SBATCH --job-name=foresee
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=4:00:00
# 120 s before the limit all ranks get SIGTERM: long enough for a step, and for the state to be saved.
#SBATCH --signal=TERM@120
# The job may be put back into the queue, and its output goes on in the same file then.
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
folder=${FORESEE_EXAMPLE:-$SLURM_SUBMIT_DIR/examples}
state=${FORESEE_STATE:-$SLURM_SUBMIT_DIR/train-$SLURM_JOB_ID.pt}
again=${state%.*}.again

# Each rank keeps 2 GiB in memory, and 50 GiB on its host's own disk; a foresee.toml that is named says something else.
if [ -z "${FORESEE_CONFIG:-}" ]; then
    export FORESEE_TIER_0_KIND=memory FORESEE_TIER_0_CAPACITY="2 GiB"
    # In quotes: each rank looks where the disk of its host is.
    export FORESEE_TIER_1_KIND=disk FORESEE_TIER_1_CAPACITY="50 GiB" FORESEE_TIER_1_PATH='${node-local|/tmp}/foresee'
fi

rm -f "$again"
# A rank that fails ends the others, too: none of them could go on without it. Ranks whose slurmstepd is killed, of which SLURM
# loses sight, get SIGTERM from the kernel (setpriv), so that all of them stop in order; srun then waits a minute for its
# word on them.
srun --kill-on-bad-exit=1 --wait=60 setpriv --pdeathsig TERM \
    "${PYTHON:-python3}" "$folder/train_slurm.py" --state "$state" "$@" || exit
# Stopped before it was done: from the queue again. Who cancels the job ends this script before it gets here.
if [ -e "$again" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
