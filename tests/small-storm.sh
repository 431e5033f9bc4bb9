#!/bin/bash
# The storm benchmark in small, on a loop device that takes 10 MiB/s: tests/small-storm.sh. Fourteen jobs
# have to save 80 MB; first all at once, then by permits. It needs root and the blkio controller of
# cgroup v1; where they are not it says so, and succeeds. CARGO_TARGET_DIR and PROFILE (debug) are
# respected.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}/${PROFILE:-debug}"

dir="$(mktemp -d)"
trap 'tests/targets/loop.sh down "$dir/loop"; rm -rf "$dir"' EXIT
made=0
tests/targets/loop.sh up "$dir/loop" 10 || made=$?
if [ "$made" -eq 3 ]; then
    echo "no storm: this machine has no storage that can be limited"
    exit 0
fi
[ "$made" -eq 0 ]

"$target/tidegate-storm" --target "$dir/loop/target.json" --small --scale 400000 \
    --storm maintenance --arm none --arm permits --json "$dir/storm.json"
python3 - "$dir/storm.json" <<'PYTHON'
import json, sys
rows = {row["arm"]: row for row in json.load(open(sys.argv[1]))["rows"]}
none, permits = rows["none"], rows["permits"]
wrong = []
if permits["victims"] != 14 or permits["unsaved"] != 0:
    wrong.append("not all of the 14 jobs saved under permits")
# The goal is 1.10; a busy machine's hundredths of a second are let pass. The device itself stops at
# 1.25 of the cap, where the other arm is.
if permits["peak_over_cap"] >= 1.2:
    wrong.append("permits were not kept to")
if permits["victims_idle_ratio"] >= none["victims_idle_ratio"]:
    wrong.append("GPUs waited as long as without a gate")
if permits["bystander_p99_ms"] >= none["bystander_p99_ms"]:
    wrong.append("bystanders waited as long as without a gate")
sys.exit("; ".join(wrong) or 0)
PYTHON
