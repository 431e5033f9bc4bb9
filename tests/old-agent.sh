#!/bin/bash
# Runs the released 0.1 on the nodes of a cluster whose coordinator is of this checkout: agent, starter
# and shim are built from the tag v0.1.0, or from the commit in tests/data/0.1/commit where there are
# no tags. Compatibility is the coordinator's duty: a cluster is upgraded coordinator first, then node
# by node, and nobody drains anything for it.
#
# tests/old-agent.sh [SUITE...]: the suites to run with those nodes; without any, old_agent and line.
#
# It needs the history of the project, and builds into $CARGO_TARGET_DIR/0.1, which a later run finds.
set -euo pipefail
cd "$(dirname "$0")/.."

suites=("$@")
[ "${#suites[@]}" -gt 0 ] || suites=(old_agent line)

commit="$(git rev-parse --quiet --verify 'v0.1.0^{commit}')" || commit="$(<tests/data/0.1/commit)"
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "the released 0.1 ($commit) is not in this clone; fetch its history: git fetch --unshallow" >&2
    exit 1
fi

old="$(realpath -m "${CARGO_TARGET_DIR:-target}")/0.1"
# At one place, so that cargo knows again what it has built.
if [ "$(cat "$old/commit" 2>/dev/null)" != "$commit" ]; then
    rm -rf "$old/source"
    mkdir -p "$old/source"
    git archive "$commit" | tar -x -C "$old/source"
    echo "$commit" >"$old/commit"
fi
(cd "$old/source" && cargo build --locked --package tidegate-agent --bins --target-dir "$old/build")

tests=()
for suite in "${suites[@]}"; do
    tests+=(--test "$suite")
done
TIDEGATE_TEST_NODE_BINARIES="$old/build/debug" \
    cargo test --locked --package cluster-tests "${tests[@]}" -- --include-ignored
