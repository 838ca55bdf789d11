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
# Which GPUs a job has is certain if it has all of the node, if CUDA_VISIBLE_DEVICES holds UUIDs, and if gres.conf on
# this node says which device file each of Slurm's indices is; the lines of gres.conf about GPUs are noted too. Inside a
# job whose cgroup hides the other GPUs, those that are left are the job's. Where none of this is so, whorl does not
# guess. If gres.conf cannot be read here and Slurm's index of a GPU is the number of its device file, say so:
# WHORL_SLURM_INDEX=minor.
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

gres() { # the lines of gres.conf that may be about GPUs of this node
	for conf in "${SLURM_CONF:+${SLURM_CONF%/*}/gres.conf}" /etc/slurm/gres.conf /run/slurm/conf/gres.conf /etc/slurm-llnl/gres.conf; do
		[ -n "$conf" ] && [ -r "$conf" ] || continue
		lines=0
		while read line || [ -n "$line" ]; do # a backslash at its end continues a line
			line=${line%%#*}
			case $line in
			*[Gg][Pp][Uu]* | *[Aa][Uu][Tt][Oo][Dd][Ee][Tt]* | *[Ii][Nn][Cc][Ll][Uu][Dd][Ee]*) ;;
			*) continue ;;
			esac
			case $line in
			*[Nn][Oo][Dd][Ee][Nn][Aa][Mm][Ee]=*)
				names=${line#*[Nn][Oo][Dd][Ee][Nn][Aa][Mm][Ee]=} names=${names%%[ 	]*}
				case $names in *[[,]* | "$node") ;; *) continue ;; esac
				;;
			esac
			lines=$((lines + 1))
			case $line in *[![:print:][:blank:]]*) line='Include unreadable' ;; esac
			[ "$lines" -le 100 ] && [ "${#line}" -le 500 ] || { echo 'gres=Include too long' && break; }
			echo "gres=$line"
		done <"$conf"
		break
	done
}

reachable() { # inside a job: the GPUs that its cgroup does not hide, as UUIDs with commas
	[ -z "${SLURM_SCRIPT_CONTEXT:-}" ] && [ "$(id -u)" != 0 ] || return
	timeout -k 1 $((limit > 3 ? limit - 2 : 1)) nvidia-smi -L 2>/dev/null | while IFS= read -r line; do
		uuid=${line##*UUID: }
		case $line in ' '*) ;; *UUID:*) printf '%s,' "${uuid%)*}" ;; esac
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
		gres
		[ "$event" = end ] || put reachable "$(reachable)"
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
