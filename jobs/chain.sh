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
for name in USR1 USR2 HUP INT TERM; do trap "pass $name" "$name"; done

# One job may be this link: of two that were submitted the second goes. So does one that starts again after a later
# link took over.
(set -C && echo "$SLURM_JOB_ID $(date +%s)" >"$begun") 2>/dev/null
owner=''
read -r owner _ 2>/dev/null <"$begun"
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

state_of_predecessor() {
    local answer
    if answer=$(squeue -h -t all -j "$predecessor" -o %T 2>&1); then
        echo "${answer:-GONE}"
    else
        case $answer in *"Invalid job id"*) echo GONE ;; *) echo UNKNOWN ;; esac
    fi
}

# The predecessor's script has ended, and not because Slurm ended its job: that is known when Slurm says how.
has_left() {
    read -r _ _ its_status its_signals 2>/dev/null <"$before" && [[ $its_signals != *TERM* ]]
}

if [ -n "$predecessor" ]; then
    asked='' its_status='' its_signals=''
    while [ "$(date +%s)" -lt "$latest" ]; do
        case $(state_of_predecessor) in
            RUNNING | SUSPENDED | STOPPED)
                if [ -z "$asked" ] && [ "$ask" != none ] && ! has_left; then
                    note "asks its predecessor, job $predecessor, to checkpoint (SIG$ask)"
                    scancel --batch --signal="$ask" "$predecessor" && asked=yes
                fi ;;
            PENDING | REQUEUE*) # it was preempted, and waits again
                note "takes over from job $predecessor, which waits in the queue again"
                scancel --state=PENDING "$predecessor"
                break ;;
            COMPLETING | CONFIGURING | SIGNALING | STAGE_OUT | RESIZING | UNKNOWN) ;;
            CANCELLED)
                [ -n "$asked" ] && break
                note "its predecessor was cancelled: the chain ends"
                exit 1 ;;
            *) break ;;
        esac
        for _ in {1..20}; do
            has_left && break 2
            sleep 0.1
        done
    done
    if has_left && [[ $its_signals != *USR[12]* && $its_signals != *"$ask"* ]]; then
        if [ "$its_status" = 0 ] && [ "$until" = done ]; then
            note "its predecessor ended the work: nothing is left to do"
            exit 0
        elif [ "$its_status" != 0 ] && [ "$its_status" != @more@ ]; then
            note "its predecessor failed with status $its_status: the chain ends"
            exit 1
        fi
    fi
    note "begins"
fi

set -m # so that the script does not ignore SIGINT, as what runs in the background of a shell does
script=$(mktemp "${TMPDIR:-/tmp}/whorl-chain.XXXXXX") || exit 1
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
{ echo "$SLURM_JOB_ID $(date +%s) $status $signals" >"$ended.new" && mv "$ended.new" "$ended"; } 2>/dev/null
exit "$status"
