#!/bin/bash
# This file was never run on a real PBS Pro or OpenPBS: read it before you use it.
# Measures all GPUs of one node. Submit it with `qsub FILE`; docs/campaigns.md says how to change it.
#PBS -N {{name|plain}}
#PBS -v WHORL_JOB={{name|sh}},WHORL_COMMENT={{comment|sh}}
#PBS -v WHORL_JOB={{name|sh}}{{!comment}}
#PBS -l select=1:ncpus={{gpus}}:ngpus={{gpus}}:host={{node|sh}}
#PBS -l select=1:ncpus={{gpus}}:ngpus={{gpus}}{{!node}}
#PBS -l place=exclhost
#PBS -l walltime={{walltime}}
#PBS -q {{partition|sh}}
#PBS -A {{account|sh}}
#PBS -p -1024
#PBS -r y
#PBS -j oe
#PBS -o {{output|sh}}
#PBS {{option}}

# The variables tell whorl which of its jobs this is: a name of PBS has no colons.
# PBS starts in the home folder. ncpus: one for each GPU; with the cgroups hook a job gets only the CPUs it asks for.
# -p -1024 is the lowest priority. -r y lets PBS start the job again: it then measures only what is missing.

{{setup}}

# With exec, signals reach whorl, which then stores what is complete.
exec {{command}}
