# SPDX-License-Identifier: Apache-2.0
# For scripts that show the programs: starts daemons in a directory of their own, and leaves nothing.
# Sourced; the sourcing script calls make_dir first. pids are the running daemons.

die() { echo "${0##*/}: $1" >&2; exit 1; }

make_dir() {
    dir=$(mktemp -d "${TMPDIR:-/tmp}/weightd-demo.XXXXXX")
    export XDG_RUNTIME_DIR=$dir # how stop_all knows our processes
}

dir=
pids=()

# Ends everything that was started and removes its directory; then looks whether that is true.
stop_all() {
    local pid i left=0
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill -TERM "${pids[i]}" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        for ((i = 0; i < 100; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        if kill -KILL "$pid" 2>/dev/null; then
            echo "${0##*/}: process $pid did not end by itself" >&2
            left=1
        fi
        wait "$pid" 2>/dev/null || true
    done
    pids=()
    if [ -n "$dir" ]; then
        if [ -n "$(find "$dir" -type s)" ]; then
            echo "${0##*/}: sockets were left: $(find "$dir" -type s)" >&2
            left=1
        fi
        # Not in grep's own environment, or it finds itself.
        if env -u XDG_RUNTIME_DIR grep -lzsx "XDG_RUNTIME_DIR=$dir" /proc/[0-9]*/environ; then
            echo "${0##*/}: the processes above were left" >&2
            left=1
        fi
        rm -rf "$dir"
    fi
    dir=
    return $left
}
trap 'stop_all || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME COMMAND...: runs a daemon and waits for its ready line.
start() {
    local name=$1 log=$dir/$1.log
    shift
    : >"$log"
    "$@" </dev/null >"$log" 2>&1 &
    pids+=($!)
    local i
    for ((i = 0; i < 1200; i++)); do
        if grep -q ': ready' "$log"; then
            grep ': ready' "$log" | tail -n 1
            return
        fi
        kill -0 "${pids[-1]}" 2>/dev/null || { cat "$log" >&2; die "$name ended"; }
        sleep 0.05
    done
    cat "$log" >&2
    die "$name is not ready after a minute"
}
