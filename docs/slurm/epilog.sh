#!/bin/sh
# Slurm's Epilog: notes that a job has given its GPUs back. Slurm runs it as root on each node after the job.
# If an epilog fails, Slurm drains the node. So this one always ends with 0, and within 5 seconds.
# Root writes nothing into the folder of another user: the tag is written by the folder's owner, whorl.
trap 'exit 0' EXIT
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
WHORL_TAG_SECONDS=2 timeout -k 1 4 runuser -u whorl -- sh /etc/slurm/whorl-tag end /var/spool/whorl </dev/null >/dev/null 2>&1
