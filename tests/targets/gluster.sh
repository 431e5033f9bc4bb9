#!/bin/bash
# A storage target for the storm benchmark: a GlusterFS volume whose server is behind a link of limited
# rate, mounted by each of several client hosts. As root: tests/targets/gluster.sh up DIR [MBIT]
# [CLIENTS], then down DIR. DIR gets `target.json`, for `tidegate storm --target DIR/target.json`.
#
# Server, switch and clients are network namespaces (tgw-…) that the script makes and removes; nothing
# of it is in the host's network. The storm's agents and jobs are in those of the clients. Many clients, because that is where the harm is: one client's
# innocent writes have a fair share of its only connection. Debian's glusterfs-server and
# glusterfs-client are installed where they are missing. Where the machine cannot do it the script says
# so and exits with 3.
set -euo pipefail

dir="$(realpath -m "${2:?up DIR [MBIT] [CLIENTS] or down DIR}")"
server=tgw-server
switch=tgw-switch

tools() {
    if ! command -v glusterd >/dev/null || ! command -v ip >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            glusterfs-server glusterfs-client iproute2 >/dev/null
    fi
}

# A host of the given name and last byte of its address, on the switch.
host() {
    ip netns add "$1"
    ip -n "$1" link set lo up
    ip link add eth0 netns "$1" type veth peer name "to-$2" netns "$switch"
    ip -n "$1" addr add "10.79.0.$2/24" dev eth0
    ip -n "$1" link set eth0 up
    ip -n "$switch" link set "to-$2" master br0 up
}

shape() {
    ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "${3}mbit" burst 256kb latency 200ms
}

up() {
    local mbit="${1:-200}" clients="${2:-24}" client pid mounts=()
    tools
    ip netns add "$switch" || { echo "no network namespaces here"; exit 3; }
    ip -n "$switch" link add br0 type bridge
    ip -n "$switch" link set br0 up
    host "$server" 1
    shape "$switch" to-1 "$mbit"
    shape "$server" eth0 "$mbit"
    mkdir -p "$dir/brick" "$dir/work" "$dir/run"
    cat >"$dir/glusterd.vol" <<VOLUME
volume management
    type mgmt/glusterd
    option working-directory $dir/work
    option transport-type socket
    option transport.socket.listen-port 24007
    option transport.socket.bind-address 10.79.0.1
    option run-directory $dir/run
end-volume
VOLUME
    ip netns exec "$server" glusterd -f "$dir/glusterd.vol" -l "$dir/glusterd.log" -p "$dir/glusterd.pid"
    for _ in {1..100}; do
        [ -s "$dir/glusterd.pid" ] && command_on_server volume list >/dev/null 2>&1 && break
        sleep 0.1
    done
    command_on_server volume create ck transport tcp "10.79.0.1:$dir/brick" force >/dev/null
    command_on_server volume start ck >/dev/null
    for ((client = 1; client <= clients; client++)); do
        host "tgw-client-$client" "$((client + 10))"
        mkdir -p "$dir/mnt-$client"
        # Not `ip netns exec`: what is mounted under it is seen only there.
        nsenter --net="/run/netns/tgw-client-$client" glusterfs --volfile-server=10.79.0.1 \
            --volfile-id=ck -l "$dir/client-$client.log" "$dir/mnt-$client"
        mounts+=("$dir/mnt-$client")
    done
    pid="$(cat "$dir/glusterd.pid")"
    python3 - "$mbit" "$pid" "${mounts[@]}" <<'PYTHON' >"$dir/target.json"
import json, sys
mbit, pid, *mounts = sys.argv[1:]
clients = range(1, len(mounts) + 1)
print(json.dumps({
    "name": f"GlusterFS, {mbit} Mbit/s, {len(mounts)} clients",
    "directories": mounts,
    "networks": [f"/run/netns/tgw-client-{client}" for client in clients],
    "meter": {"link": {"file": f"/proc/{pid}/net/dev", "interface": "eth0"}},
}))
PYTHON
}

command_on_server() {
    ip netns exec "$server" gluster --mode=script "$@"
}

# Of what is there; twice is fine.
down() {
    local mount pid space
    for mount in "$dir"/mnt-*; do
        if mountpoint -q "$mount"; then
            umount -l "$mount"
        fi
    done
    for space in $(ip netns list | cut -d' ' -f1 | grep '^tgw-' || true); do
        for pid in $(ip netns pids "$space"); do
            kill -9 "$pid" 2>/dev/null || true
        done
        ip netns del "$space"
    done
    rm -rf "$dir"/brick "$dir"/work "$dir"/run "$dir"/mnt-* "$dir"/glusterd.* "$dir"/*.log "$dir/target.json"
    if [ -d "$dir" ]; then
        rmdir --ignore-fail-on-non-empty "$dir"
    fi
}

case "$1" in
    up) up "${3:-}" "${4:-}" ;;
    down) down ;;
    *) echo "up DIR [MBIT] [CLIENTS] or down DIR"; exit 2 ;;
esac
