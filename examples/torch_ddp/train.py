"""A small DistributedDataParallel run that saves and leaves when Tidegate asks, and resumes.

Started by torchrun, one process for each rank. Every rank has a handler for SIGUSR1; that it was
asked is agreed on by all ranks at the end of a step, so all save, and leave, at the same one. Each
rank writes a part of the checkpoint. Before the collective in which they do, rank 0 asks for a
permit for all of them, and hands its rate on; afterwards it gives the permit back and commits what
was made durable (docs/job-protocol.md).

The weights in the end depend on the number of steps and ranks alone, never on how often the run was
stopped: `final step=… loss=…` can be compared. It runs on CPUs, over gloo.
"""

import signal

# Before torch is imported, which takes seconds: a rank without a handler is not signalled, and is
# asked only when it has one.
ASKED = []
signal.signal(signal.SIGUSR1, lambda number, frame: ASKED.append(number))

import argparse
import glob
import io
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

# examples/client.py: a copy of it lies beside this file, or it is where the examples are.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import client

# What the job file names as "saved".
SAVED = 85
# The newest may be torn by a failing disk, and the one before it unread.
KEEP = 2
FEATURES = 32
# How long a permit is waited for, in seconds: the other ranks wait in a collective meanwhile, and
# gloo's watchdog ends one of those after 30 min.
WAIT_S = 600


class Checkpoints:
    """Directories attempt-N/step-S: no attempt writes where another has written."""

    def __init__(self, root):
        self.root = root
        self.own = os.path.join(root, f"attempt-{os.environ.get('TIDEGATE_ATTEMPT', '1')}")

    def whole(self):
        """Complete ones, the newest last."""
        found = glob.glob(os.path.join(self.root, "attempt-*", "step-????????"))
        return sorted(found, key=os.path.basename)

    def begin(self, step):
        """Where the parts of a new one are written; and its name once it is complete."""
        whole = os.path.join(self.own, f"step-{step:08}")
        partial = whole + ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        return partial, whole

    def complete(self, partial, whole):
        """All or nothing of it is there, whatever fails."""
        sync(partial)
        os.rename(partial, whole)
        for directory in (self.own, self.root):
            sync(directory)

    def remove_old(self):
        for old in self.whole()[:-KEEP]:
            shutil.rmtree(old)


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def from_rank_0(*values):
    """The values that rank 0 has, on every rank."""
    values = list(values)
    dist.broadcast_object_list(values, src=0)
    return values


class State:
    """What a checkpoint holds, as one vector of which each rank writes its part."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def momenta(self):
        of = self.optimizer.state
        return [of[one]["momentum_buffer"] for one in self.model.parameters()]

    def part(self, step):
        """The bytes of this rank's part."""
        weights = parameters_to_vector(self.model.parameters()).detach()
        vector = torch.cat([weights, parameters_to_vector(self.momenta())])
        mine = vector.tensor_split(dist.get_world_size())[dist.get_rank()]
        file = io.BytesIO()
        torch.save({"step": step, "part": mine.clone()}, file)
        return file.getbuffer()

    def restore(self, directory):
        """The step at which it was saved. By any number of ranks."""
        names = sorted(os.listdir(directory))
        parts = [torch.load(os.path.join(directory, name)) for name in names]
        weights, momenta = torch.cat([one["part"] for one in parts]).chunk(2)
        vector_to_parameters(weights, self.model.parameters())
        for one, momentum in zip(self.model.parameters(), like_parameters(momenta, self.model)):
            self.optimizer.state[one]["momentum_buffer"] = momentum
        return parts[0]["step"]


def like_parameters(vector, model):
    sizes = [one.numel() for one in model.parameters()]
    pieces = zip(vector.split(sizes), model.parameters())
    return [piece.clone().view_as(one) for piece, one in pieces]


def granted(job, total, kind):
    """The rate of the whole gang; None = not limited. Waits for its turn."""
    try:
        job.ask(bytes=total, kind=kind, files=dist.get_world_size(), wait_s=WAIT_S)
    except client.Refused as why:
        # A checkpoint matters more.
        print(f"writes without a permit: {why}", flush=True)
    return job.bytes_per_s


def save_and_commit(job, kept, state, step, kind):
    rank = dist.get_rank()
    part = state.part(step)
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, len(part))
    total = sum(sizes)
    partial = whole = rate = None
    if rank == 0:
        partial, whole = kept.begin(step)
        rate = granted(job, total, kind) if job else None
    partial, rate = from_rank_0(partial, rate)
    began = time.monotonic()
    with open(os.path.join(partial, f"rank-{rank:04}.pt"), "wb") as file:
        client.Writer(rate, share=len(part) / total).write(file, part)
        file.flush()
        os.fsync(file.fileno())
    dist.barrier()
    if rank == 0:
        took = time.monotonic() - began
        line = f"wrote step={step} kind={kind} bytes={total} rate={rate} took={took:.3f}"
        print(line, flush=True)
        if job and job.grant:
            job.done(total)
        kept.complete(partial, whole)
        if job:
            job.commit(step, whole)
        print(f"committed step {step}", flush=True)
        # Only now: the one before was the newest that counted.
        kept.remove_old()
    # No rank leaves before the checkpoint counts.
    dist.barrier()


def is_asked(rank):
    """Whether any rank was asked; every rank gets the same answer."""
    announced = rank == 0 and os.path.exists(os.environ.get("TIDEGATE_PREEMPT_FILE", ""))
    flag = torch.tensor([1 if ASKED or announced else 0])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def batch(step, rank):
    """The same for a step and a rank, whenever it is computed."""
    source = torch.Generator().manual_seed(step * 1009 + rank)
    inputs = torch.randn(16, FEATURES, generator=source)
    return inputs, inputs.square().mean(dim=1, keepdim=True)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=int, default=50, help="a step takes at least this long")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--width", type=int, default=64, help="a checkpoint has 272 bytes for each")
    default = os.environ.get("TIDEGATE_CHECKPOINT_DIR", "checkpoints")
    parser.add_argument("--checkpoint-dir", default=default)
    return parser.parse_args()


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # Without Tidegate there is no socket, and nothing is asked or committed.
    job = client.Job() if rank == 0 and "TIDEGATE_SOCKET" in os.environ else None
    kept = Checkpoints(args.checkpoint_dir)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, args.width), torch.nn.Tanh(), torch.nn.Linear(args.width, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=3.2 / args.width, momentum=0.9)
    state = State(model, optimizer)
    # All ranks go on from what rank 0 has found.
    (newest,) = from_rank_0(next(reversed(kept.whole()), None))
    step = state.restore(newest) if newest else 0
    if rank == 0:
        print(f"begins after step {step}", flush=True)
    # Keeps DDP from ordering its buckets anew after the first step of each run: gradients would be
    # summed in another order, and the loss would depend on where the run was stopped.
    parallel = DistributedDataParallel(model, find_unused_parameters=True)

    while step < args.steps:
        began = time.monotonic()
        inputs, wanted = batch(step, rank)
        loss = torch.nn.functional.mse_loss(parallel(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        asked, last = is_asked(rank), step == args.steps
        if asked or last or step % args.save_every == 0:
            kind = "preemption" if asked else "final" if last else "periodic"
            save_and_commit(job, kept, state, step, kind)
        if asked and not last:
            sys.exit(SAVED)
        time.sleep(max(0.0, began + args.step_ms / 1000 - time.monotonic()))
    if rank == 0:
        inputs, wanted = batch(1 << 30, 0)
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        print(f"final step={step} loss={loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
