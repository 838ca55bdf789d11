#!/bin/bash
# This file was never run on a real LSF: read it before you use it.
# Measures all GPUs of one node. Submit it with `bsub < FILE`; docs/campaigns.md says how to change it.
#BSUB -J {{name|plain}}
#BSUB -Jd {{label|sh}}
#BSUB -n {{gpus}}
#BSUB -R "span[hosts=1]"
#BSUB -m {{node|sh}}
#BSUB -x
#BSUB -gpu "num={{gpus}}:mode=shared:j_exclusive=yes"
#BSUB -W {{minutes}}
#BSUB -q {{partition|sh}}
#BSUB -P {{account|sh}}
#BSUB -r
#BSUB -o {{output|sh}}
#BSUB {{option}}

# -n: one slot for each GPU. -x: nobody else is on the node; the queue must allow it (EXCLUSIVE = Y).
# -r lets LSF start the job again after a failure of the host: it then measures only what is missing.

{{setup}}

# Where the script runs on a launch node, as on Summit, use these directives instead of -n, -R, -m, -x and -gpu:
#     #BSUB -nnodes 1
# and as the last line, with the node's number of CPUs for 42:
#     exec jsrun -n 1 -r 1 -a 1 -g {{gpus}} -c 42 {{command}}
# With exec, signals reach whorl, which then stores what is complete.
exec {{command}}
