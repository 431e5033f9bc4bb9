#!/bin/bash
# Instructions that fixed loads on the scheduler take, counted by callgrind, beside those kept in
# tests/data/instructions: tests/instructions.sh. More than 10 % above fails. --update writes them
# anew; do so in the commit that explains why. The counts hold for the toolchain of
# rust-toolchain.toml on x86-64; another processor moves them by a few parts in a thousand.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"
kept=tests/data/instructions
most=110

declare -A loads=(
    [lab]="--nodes 128 --waiting 2000 --warm-up 500 --events 500"
    [large]="--nodes 512 --waiting 4000 --warm-up 100 --events 150"
)

if ! command -v valgrind >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind >/dev/null
fi
cargo build --release --locked -p cluster-tests --bin core-load

failed=0
for name in "${!loads[@]}"; do
    # shellcheck disable=SC2086 # several words
    said="$(valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        "$target/release/core-load" ${loads[$name]} 2>&1)"
    now="$(sed -n 's/.*Collected : //p' <<<"$said")"
    if [ -z "$now" ]; then
        echo "$said"
        exit 1
    fi
    if [ "${1:-}" = --update ]; then
        echo "$now" >"$kept/$name"
    fi
    before="$(cat "$kept/$name")"
    echo "$name: $now instructions, $((now * 1000 / before)) thousandths of the $before that are kept"
    if [ "$((now * 100))" -gt "$((before * most))" ]; then
        echo "$name takes more than $most % of what it took"
        failed=1
    fi
done
exit "$failed"
