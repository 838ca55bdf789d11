#!/bin/sh
# Slurm's Epilog: notes that a job has given its GPUs back. It runs as root on each node after the job.
# If an epilog fails, Slurm drains the node. So this one always ends with 0, and within 5 seconds.
trap 'exit 0' EXIT
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
WHORL_TAG_SECONDS=2 timeout -k 1 4 sh /etc/slurm/whorl-tag end /var/spool/whorl </dev/null >/dev/null 2>&1
