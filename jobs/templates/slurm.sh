#!/bin/bash
# Measures all GPUs of one node. Made by `whorl campaign`; docs/campaigns.md says how to change it.
#SBATCH --job-name={{name|sh}}
#SBATCH --comment={{comment|sh}}
#SBATCH --nodes=1
#SBATCH --nodelist={{node|sh}}
#SBATCH --exclusive
#SBATCH --gres=gpu:{{gpus}}
#SBATCH --mem=0
#SBATCH --time={{minutes}}
#SBATCH --partition={{partition|sh}}
#SBATCH --qos={{qos|sh}}
#SBATCH --account={{account|sh}}
#SBATCH --nice={{nice}}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={{output|sh}}
#SBATCH {{option}}

# A job that was preempted starts again and measures what is missing. A node that fails each time must not do so for ever.
if [ "${SLURM_RESTART_COUNT:-0}" -gt 10 ]; then
    echo "this job was started again ${SLURM_RESTART_COUNT} times: it ends here" >&2
    exit 1
fi

{{setup}}

# No srun: a step of Slurm may hide GPUs. With exec, signals reach whorl, which then stores what is complete.
exec {{command}}
