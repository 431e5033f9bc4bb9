"""A small data-parallel JAX run with Orbax that saves and leaves when Tidegate asks, and resumes.

One process for each GPU, started by Tidegate itself (tasks = "per-gpu"); JAX's processes meet at
$MASTER_ADDR. The signal (preset `jax`: SIGTERM) is JAX's own preemption notice: all processes agree
on a step, `reached_preemption` says that it is this one, the run saves and leaves with 0, as
MaxText does. What Tidegate adds is between: process 0 asks for a permit before the save in which
all take part, and commits when `wait_until_finished` has returned (docs/job-protocol.md).

Orbax and TensorStore write with threads of their own. They bound how much is in flight
(`save_concurrent_gb`), and can be held to no rate: the permit says when a save begins, how fast it is
is left to them. A gate that admits one writer at a time (`tidegate gate set shared --writers 1`) is
kept all the same; a cap on bytes only as far as its `--node` says what a node really writes.

The weights in the end depend on the number of steps and processes alone: `final step=… loss=…` can
be compared. It runs on CPUs. requirements.txt has the versions that it is tested with.
"""

import argparse
import os
import shutil
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# examples/client.py: a copy of it lies beside this file, or it is where the examples are.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client

# The newest may be torn by a failing disk, and the one before it unread.
KEEP = 2
FEATURES = 32
# How long a permit is waited for, in seconds; the others wait at a barrier for somewhat longer.
WAIT_S = 600
# Of each process, in each step.
BATCH = 16
LEARNING_RATE = 0.05


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=int, default=50, help="a step takes at least this long")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    default = os.environ.get("TIDEGATE_CHECKPOINT_DIR", os.path.abspath("checkpoints"))
    parser.add_argument("--checkpoint-dir", default=default)
    return parser.parse_args()


def meet():
    """The processes of the gang find one another; from here on SIGTERM is a notice."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    address = f"{address}:{os.environ.get('MASTER_PORT', '29511')}"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=address,
        # Without it, on every address that the host has.
        coordinator_bind_address=address,
        num_processes=int(os.environ.get("WORLD_SIZE", "1")),
        process_id=int(os.environ.get("RANK", "0")),
    )


def begin(width, mesh):
    """Weights and momenta. The large ones lie in parts on all processes: each saves its own."""
    keys = jax.random.split(jax.random.key(0), 2)
    weights = {
        "hidden": jax.random.normal(keys[0], (width, FEATURES)) / FEATURES**0.5,
        "output": jax.random.normal(keys[1], (width,)) / width**0.5,
        "bias": jnp.zeros(()),
    }
    state = {"weights": weights, "momenta": jax.tree.map(jnp.zeros_like, weights)}
    parts = NamedSharding(mesh, PartitionSpec("all"))
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.device_put(state, jax.tree.map(lambda one: parts if one.ndim else whole, state))


def loss_of(weights, inputs):
    hidden = jnp.tanh(inputs @ weights["hidden"].T)
    said = hidden @ weights["output"] + weights["bias"]
    return jnp.mean((said - jnp.mean(inputs**2, axis=1)) ** 2)


@jax.jit
def train(state, inputs):
    slopes = jax.grad(loss_of)(state["weights"], inputs)
    momenta = jax.tree.map(lambda old, new: 0.9 * old + new, state["momenta"], slopes)
    move = lambda weight, momentum: weight - LEARNING_RATE * momentum
    return {"weights": jax.tree.map(move, state["weights"], momenta), "momenta": momenta}


def batch(step, mesh):
    """The same for a step and a process, whenever it is computed."""
    source = np.random.default_rng([step, jax.process_index()])
    mine = source.standard_normal((BATCH, FEATURES), dtype=np.float32)
    return multihost_utils.host_local_array_to_global_array(mine, mesh, PartitionSpec("all"))


class Checkpoints:
    """Directories attempt-N/S, a manager of Orbax's for each attempt: none writes where another has."""

    def __init__(self, root):
        self.root = root
        self.attempt = int(os.environ.get("TIDEGATE_ATTEMPT", "1"))
        os.makedirs(root, exist_ok=True)
        # Before the manager makes a directory, and by one process: two may see different things.
        self.newest = multihost_utils.broadcast_one_to_all(np.array(self._newest()))
        options = ocp.CheckpointManagerOptions(max_to_keep=KEEP)
        self.manager = ocp.CheckpointManager(self._of(self.attempt), options=options)

    def _of(self, attempt):
        return epath.Path(self.root) / f"attempt-{attempt}"

    def _attempts(self):
        names = [name for name in os.listdir(self.root) if name.startswith("attempt-")]
        return [int(name.removeprefix("attempt-")) for name in names]

    def _newest(self):
        """Step and attempt of the newest complete one; step 0 is none."""
        found = [(0, 0)]
        for attempt in self._attempts():
            found += [(step, attempt) for step in ocp.utils.checkpoint_steps(self._of(attempt))]
        return max(found)

    def restore(self, state):
        """What the newest holds, laid out like `state`; and its step."""
        step, attempt = (int(one) for one in self.newest)
        if step:
            path = self._of(attempt) / str(step) / "default"
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            state = ocp.StandardCheckpointer().restore(path, like)
        return step, state

    def remove_older_attempts(self):
        for attempt in self._attempts():
            if attempt < self.attempt:
                shutil.rmtree(self._of(attempt), ignore_errors=True)


def sync(directory):
    """Orbax has renamed it; TensorStore has synced what it wrote, but not what is around it."""
    for at, _, names in os.walk(directory):
        for path in [os.path.join(at, name) for name in names] + [at]:
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


def ask(job, state, kind):
    """Waits for its turn."""
    size = sum(one.nbytes for one in jax.tree.leaves(state))
    try:
        job.ask(bytes=size, kind=kind, wait_s=WAIT_S)
    except client.Refused as why:
        # A checkpoint matters more.
        print(f"saves without a permit: {why}", flush=True)


def save_and_commit(job, kept, state, step, kind):
    if job:
        ask(job, state, kind)
    # Nobody is in Orbax's barriers, with their own time-outs, before there is a permit.
    ocp.multihost.sync_global_processes(f"permit-{step}", timeout=2 * WAIT_S)
    # Whether it is time was decided already.
    kept.manager.save(step, args=ocp.args.StandardSave(state), force=True)
    kept.manager.wait_until_finished()
    if jax.process_index() == 0:
        directory = kept.manager.directory / str(step)
        sync(directory)
        sync(directory.parent)
        if job and job.grant:
            job.done()
        if job:
            job.commit(step, directory)
        print(f"committed step {step}", flush=True)
        # Only now: one of them was the newest that counted.
        kept.remove_older_attempts()
    # No process leaves before the checkpoint counts.
    ocp.multihost.sync_global_processes(f"committed-{step}")


def main():
    args = arguments()
    meet()
    is_first = jax.process_index() == 0
    # Without Tidegate there is no socket, and nothing is asked or committed.
    job = client.Job() if is_first and "TIDEGATE_SOCKET" in os.environ else None
    mesh = Mesh(np.array(jax.devices()), ("all",))
    kept = Checkpoints(args.checkpoint_dir)
    step, state = kept.restore(begin(args.width, mesh))
    if is_first:
        print(f"begins after step {step}", flush=True)
    while step < args.steps:
        began = time.monotonic()
        state = train(state, batch(step, mesh))
        step += 1
        asked, last = kept.manager.reached_preemption(step), step == args.steps
        # Not `should_save`: each attempt has a manager of its own, which would save its first step.
        if asked or last or step % args.save_every == 0:
            kind = "preemption" if asked else "final" if last else "periodic"
            save_and_commit(job, kept, state, step, kind)
        if asked and not last:
            # With 0: that it saved is known by its commit.
            sys.exit()
        time.sleep(max(0.0, began + args.step_ms / 1000 - time.monotonic()))
    loss = jax.jit(loss_of)(state["weights"], batch(1 << 30, mesh))
    if is_first:
        print(f"final step={step} loss={float(loss)!r}", flush=True)


if __name__ == "__main__":
    main()
