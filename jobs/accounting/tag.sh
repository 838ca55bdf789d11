#!/bin/sh
# whorl: note that a job begins or ends on this node, and which GPUs it has.
#
#   whorl-tag begin FOLDER      in Slurm's Prolog, or in a job
#   whorl-tag end FOLDER        in Slurm's Epilog
#
# It writes one small file into FOLDER; `whorl jobs import --tags FOLDER` reads it. It always exits with status 0, after
# WHORL_TAG_SECONDS (5) at the latest, also where the file system or the driver hangs. It passes over jobs without GPUs.
#
# It makes a new file, and writes into none that is there. As root it writes only into a folder of root's that nobody
# else may write to, and all folders above it are such ones, or sticky as /tmp, and no links: for another folder, run it
# as the folder's owner (runuser -u OWNER -- sh whorl-tag ...).
#
# Which GPUs a job has is certain if it has all of the node, and if CUDA_VISIBLE_DEVICES holds UUIDs. For other jobs,
# and for indices on a node where a GPU has vanished, whorl does not guess. If you know that Slurm's index of a GPU is
# the number of its device file (gres.conf lists /dev/nvidia0, /dev/nvidia1, ... in this order, on one line or lines of
# one type), say so: WHORL_SLURM_INDEX=minor.
# If jobs share GPUs here (shards, MPS), say so: WHORL_SHARED=1.

event=${1:-} folder=${2:-${WHORL_TAGS:-}} limit=${WHORL_TAG_SECONDS:-5} proc=${WHORL_PROC:-/proc}
case $limit in '' | *[!0-9]* | 0*) limit=5 ;; esac

put() { # KEY VALUE: a line, if there is a value and it is plain
	case $2 in
	'' | *[!-A-Za-z0-9_.,:@+/]*) ;;
	*) echo "$1=$2" ;;
	esac
}

gpus() { # a line for each GPU of the node: its UUID and the number of its device file
	found='' named=1
	for about in "$proc"/driver/nvidia/gpus/*/information; do
		[ -r "$about" ] || continue
		uuid='' minor=''
		while IFS=': 	' read -r first second third _; do
			case "$first $second" in
			'GPU UUID') uuid=$third ;;
			'Device Minor') minor=$third ;;
			esac
		done <"$about"
		case $uuid in '' | *\?*) named='' ;; esac # the driver has not asked the GPU yet
		found="$found$(put gpu "$uuid:$minor")
"
	done
	if [ -n "$found" ] && [ -n "$named" ]; then
		echo "$found"
	else
		timeout -k 1 $((limit > 3 ? limit - 2 : 1)) nvidia-smi -L 2>/dev/null | while IFS= read -r line; do
			uuid=${line##*UUID: } uuid=${uuid%)*}
			case $line in
			' '*) ;; # a MIG instance
			*UUID:*) put gpu "$uuid:" ;;
			esac
		done
	fi
	for instance in "$proc"/driver/nvidia/capabilities/gpu*/mig/gi*; do
		[ ! -e "$instance" ] || { put mig 1 && break; }
	done
}

safe() ( # whether no other user can plant or exchange a file, or a folder on the way to it, under root's hands
	[ "$(id -u)" = 0 ] || exit 0
	path='' parts=$folder
	case $folder in /*) ;; *) parts=$(pwd -P)/$folder ;; esac
	set -f -- /
	IFS=/
	for part in $parts; do
		[ -z "$part" ] || { path=$path/$part && set -- "$@" "$path"; }
	done
	modes=$(stat -c '%u %A' "$@") || exit 1 # a link is not followed
	while read -r mode; do
		case $mode in
		'0 d'????-??-?) fit=1 ;;
		'0 d'????????[tT]) fit='' ;; # what is root's in a sticky folder stays in its place
		*) exit 1 ;;
		esac
	done <<-END
		$modes
	END
	[ -n "$fit" ]
)

write() {
	umask 022
	safe && cd -P -- "$folder" || return 1
	set -C # a file that is there, or a link, is not opened
	now=$(date +%s) node=${SLURMD_NODENAME:-}
	[ -n "$node" ] || { node=$(uname -n) && node=${node%%.*}; }
	name=$node-$SLURM_JOB_ID-$event-$now-$$
	{
		echo whorl-tag=1
		put event "$event"
		put time "$now"
		put node "$node"
		put job "$SLURM_JOB_ID"
		[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || put array "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}"
		put restart "${SLURM_JOB_RESTART_COUNT:-${SLURM_RESTART_COUNT:-}}"
		put cluster "${SLURM_CLUSTER_NAME:-}"
		put uid "${SLURM_JOB_UID:-$(id -u)}"
		put user "${SLURM_JOB_USER:-}"
		put account "${SLURM_JOB_ACCOUNT:-}"
		put partition "${SLURM_JOB_PARTITION:-}"
		put slurm_gpus "$SLURM_JOB_GPUS"
		put visible "${CUDA_VISIBLE_DEVICES:-}"
		put slurm_index "${WHORL_SLURM_INDEX:-}"
		put shared "${WHORL_SHARED:-${SLURM_SHARDS_ON_NODE:-${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}}}"
		while read -r what value; do
			[ "$what" != btime ] || put booted "$value"
		done <"$proc/stat"
		gpus
		echo end=1
	} >".$name" && mv -T -- ".$name" "$name.tag"
}

case $event in
begin | end) ;;
*) echo "usage: whorl-tag begin|end FOLDER" >&2 && exit 0 ;;
esac
[ -n "$folder" ] || { echo "whorl-tag: name the folder of the tags" >&2 && exit 0; }
[ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_JOB_GPUS:-}" ] || exit 0

# The writer runs beside a clock, as nothing can interrupt a hanging file system. This ends when either of them is done.
sleep "$limit" </dev/null >/dev/null 2>&1 &
clock=$!
trap 'kill "$clock" 2>/dev/null; exit 0' USR1
trap 'kill "$clock" 2>/dev/null; echo "whorl-tag: no tag can be written into $folder (root writes only into a folder that root alone may write to, below such folders and through no link: run this as the owner of another)" >&2; exit 0' USR2
{
	if write; then kill -USR1 $$; else kill -USR2 $$; fi
} </dev/null >/dev/null 2>&1 &
writer=$!
wait "$clock"
kill -KILL "$writer" 2>/dev/null
echo "whorl-tag: no tag was written within $limit s" >&2
exit 0
