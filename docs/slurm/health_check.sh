#!/bin/sh
# Slurm's HealthCheckProgram: asks the driver and the store whether the GPUs of this node are sound. It runs no probe,
# so it does not disturb jobs. It runs as root on each node and writes what it finds to the system log.
# It drains a node only if WHORL_DRAIN=yes. It always ends with 0, and within a minute: then Slurm would kill it.
trap 'exit 0' EXIT
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
conf=/etc/whorl/whorl.conf
[ -r "$conf" ] || exit 0
. "$conf"
export SLURM_CONF

says=$(timeout -k 2 30 runuser -u "${WHORL_USER:-nobody}" -- \
    "$WHORL" check --quick --format nagios --timeout 25 </dev/null 2>&1)
status=$?
says=$(printf '%s' "$says" | sed 's/ | .*//' | tr '\n' ' ')

# 0: sound. 1: a warning. 2: critical, also where an expected GPU is absent or the driver is gone. Anything else: the
# check could not be done or no GPU is expected here, which says nothing about the GPUs.
case $status in
    0) exit 0 ;;
    1) level=warning ;;
    2) level=err ;;
    *) level=notice ;;
esac
logger -t whorl -p "daemon.$level" -- "$says"
[ "$status" = 2 ] && [ "${WHORL_DRAIN:-no}" = yes ] || exit 0

# A node that is drained already keeps its reason.
node=${SLURMD_NODENAME:-$(hostname -s)}
case $(timeout 5 sinfo -h -n "$node" -o %T) in
    "" | *drain* | *down*) ;;
    *) timeout 5 scontrol update NodeName="$node" State=DRAIN Reason="whorl: $(printf '%.200s' "$says")" ;;
esac
