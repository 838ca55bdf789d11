#!/bin/bash
#SBATCH --job-name=@job_name@
@header@

# Link @link@ of a chain of jobs, made by `whorl jobs chain`: it takes over from its predecessor, then runs the script
# at the end of this file. Two small files in `folder` tell a link from another job that was submitted for it, and the
# end of the script from a limit: "JOB TIME" and "JOB TIME STATUS SIGNALS,".
link=@link@ previous=@previous@ predecessor=@predecessor@ latest=@latest@ ask=@signal@ until=@until@ folder=@folder@
export WHORL_CHAIN=@chain@ WHORL_CHAIN_LINK=@link@ WHORL_CHAIN_PREDECESSOR=@predecessor@
begun=$folder/link-$(printf %04d "$link").begun ended=$folder/link-$(printf %04d "$link").ended
before=$folder/link-$(printf %04d "$previous").ended child='' signals=''

note() { echo "whorl: link $link of chain $WHORL_CHAIN: $*" >&2; }
pass() {
    signals=$signals$1,
    [ -z "$child" ] || kill -"$1" "$child" 2>/dev/null
}
leave() { # with a status, which the folder keeps for the driver
    { echo "$SLURM_JOB_ID $(date +%s) $1 $signals" >"$ended.new" && mv "$ended.new" "$ended"; } 2>/dev/null
    exit "$1"
}
cancel() { (unset "${!SCANCEL_@}" && scancel "$@"); } # which no variable of the user's may make ask
for name in USR1 USR2 HUP INT TERM; do trap "pass $name" "$name"; done

# One job may be this link: of two that were submitted the second goes. So does one that starts again after a later
# link took over.
owner=''
for _ in {1..10}; do # the other job may have made the file, and not yet written its number
    (set -C && echo "$SLURM_JOB_ID $(date +%s)" >"$begun") 2>/dev/null
    read -r owner _ 2>/dev/null <"$begun"
    [ -z "$owner" ] && [ -e "$begun" ] || break
    sleep 1
done
if [ -z "$owner" ]; then
    note "$folder cannot be written here: how this link ends is known from Slurm only"
elif [ "$owner" != "$SLURM_JOB_ID" ]; then
    note "job $owner is this link: this one ends"
    exit 0
fi
for name in "$folder"/link-*.begun; do
    if [[ "$name" > "$begun" ]]; then
        note "a later link has taken over: this one ends"
        exit 0
    fi
done
rm -f "$ended" 2>/dev/null

# Sets `state`, and `latest`: five minutes after the predecessor reaches its time limit, which may have been raised.
look_at_predecessor() {
    local answer its_end
    # No filter of the user's may hide the job.
    if answer=$(unset "${!SQUEUE_@}" && SLURM_TIME_FORMAT=%s squeue -h -t all -j "$predecessor" -o "%T %e" 2>&1); then
        read -r state its_end <<<"${answer:-GONE}"
        [[ $its_end =~ ^[0-9]+$ ]] && latest=$((its_end + @grace@))
    else
        case $answer in *"Invalid job id"*) state=GONE ;; *) state=UNKNOWN ;; esac
    fi
}

# The predecessor's script has ended, and not because Slurm ended its job: that is known when Slurm says how.
has_left() {
    read -r _ _ its_status its_signals 2>/dev/null <"$before" && [[ $its_signals != *TERM* ]]
}

if [ -n "$predecessor" ]; then
    state='' asked='' noted='' its_status='' its_signals='' looks=20
    while :; do
        look_at_predecessor
        overdue=''
        [ "$(date +%s)" -lt "$latest" ] || overdue=yes
        case $state in
            RUNNING | SUSPENDED | STOPPED)
                if [ -n "$overdue" ]; then
                    note "its predecessor, job $predecessor, runs on after its time limit: it is cancelled"
                    asked=yes
                    cancel "$predecessor" || leave 1
                elif [ -z "$asked" ] && [ "$ask" != none ] && ! has_left; then
                    [ -n "$noted" ] || note "asks its predecessor, job $predecessor, to checkpoint (SIG$ask)"
                    noted=yes
                    cancel --batch --signal="$ask" "$predecessor" 2>/dev/null && asked=yes
                fi ;;
            PENDING | REQUEUE*) # it was preempted, and waits again
                note "takes over from job $predecessor, which waits in the queue again"
                cancel --state=PENDING "$predecessor"
                break ;;
            COMPLETING | CONFIGURING | SIGNALING | STAGE_OUT | RESIZING | UNKNOWN) [ -z "$overdue" ] || break ;;
            CANCELLED)
                [ -n "$asked" ] && break
                note "its predecessor was cancelled: the chain ends"
                leave 1 ;;
            *) break ;;
        esac
        for ((look = 0; look < looks; look++)); do
            has_left && break 2
            sleep 0.1
        done
        looks=$((looks < 300 ? looks + 20 : 300)) # Slurm is asked every 2 s at first, every 30 s after some minutes
    done
    if has_left && [[ $its_signals != *USR[12]* && $its_signals != *"$ask"* ]]; then
        if [ "$its_status" = 0 ] && [ "$until" = done ]; then
            note "its predecessor ended the work: nothing is left to do"
            leave 0
        elif [ "$its_status" != 0 ] && [ "$its_status" != @more@ ]; then
            note "its predecessor failed with status $its_status: the chain ends"
            leave 1
        fi
    fi
    note "begins"
fi

set -m # so that the script does not ignore SIGINT, as what runs in the background of a shell does
script=$(mktemp "${TMPDIR:-/tmp}/whorl-chain.XXXXXX") || leave 1
cat >"$script" <<'@delimiter@'
@script@
@delimiter@
@interpreter@ "$script" <&0 &
child=$!
for name in ${signals//,/ }; do kill -"$name" "$child"; done
while :; do
    earlier=$signals
    wait "$child"
    status=$?
    [ "$signals" = "$earlier" ] && break # else a signal ended the waiting
done
rm -f "$script"
leave "$status"
