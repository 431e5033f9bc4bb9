#!/bin/bash
# A storage target for the storm benchmark: an ext4 file system on a loop device whose writes the
# kernel holds to a rate. As root: tests/targets/loop.sh up DIR [MIB_PER_S], then down DIR. DIR gets
# `target.json`, for `tidegate storm --target DIR/target.json`.
#
# The limit is the blkio controller's of cgroup v1, set in the root group for this one device:
# buffered writes are held to it, too. Elsewhere the script says so and exits with 3.
set -euo pipefail

dir="$(realpath -m "${2:?up DIR [MIB_PER_S] or down DIR}")"
limit=/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device
tools=(mkfs.ext4 losetup lsblk mountpoint python3)

up() {
    local mib="${1:-25}" device number tool
    for tool in "${tools[@]}"; do
        command -v "$tool" >/dev/null || { echo "$tool is missing"; exit 3; }
    done
    [ -w "$limit" ] || { echo "no blkio throttle here: $limit cannot be written"; exit 3; }
    mkdir -p "$dir/mnt"
    truncate -s 6G "$dir/image"
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$dir/image"
    device="$(losetup -f --show "$dir/image")" || { echo "no loop devices here"; exit 3; }
    echo "$device" >"$dir/device"
    mount "$device" "$dir/mnt" || { echo "nothing may be mounted here"; exit 3; }
    number="$(lsblk -dno MAJ:MIN "$device" | tr -d ' ')"
    echo "$number" >"$dir/number"
    echo "$number $((mib * 1048576))" >"$limit" || { echo "$limit takes no limit"; exit 3; }
    python3 - "$dir" "$number" "$mib" <<'PYTHON' >"$dir/target.json"
import json, sys
directory, number, mib = sys.argv[1:]
print(json.dumps({
    "name": f"loop ext4, {mib} MiB/s",
    "directories": [f"{directory}/mnt"],
    "meter": {"disk": f"/sys/dev/block/{number}/stat"},
}))
PYTHON
}

down() {
    if [ -e "$dir/number" ]; then
        echo "$(cat "$dir/number") 0" >"$limit"
    fi
    if mountpoint -q "$dir/mnt"; then
        umount "$dir/mnt"
    fi
    if [ -e "$dir/device" ]; then
        losetup -d "$(cat "$dir/device")"
    fi
    rm -rf "$dir/image" "$dir/device" "$dir/number" "$dir/target.json" "$dir/mnt"
    if [ -d "$dir" ]; then
        rmdir --ignore-fail-on-non-empty "$dir"
    fi
}

case "$1" in
    up) up "${3:-}" ;;
    down) down ;;
    *) echo "up DIR [MIB_PER_S] or down DIR"; exit 2 ;;
esac
