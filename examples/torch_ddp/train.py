"""A small DistributedDataParallel run that saves and leaves when Tidegate asks, and resumes.

Started by torchrun, one process for each rank. Every rank has a handler for SIGUSR1; that it was
asked is agreed on by all ranks at the end of a step, so all save, and leave, at the same one. Rank 0
writes the checkpoint, makes it durable, and commits it on the job's socket (docs/job-protocol.md).

The weights in the end depend on the number of steps and ranks alone, never on how often the run was
stopped: `final step=… loss=…` can be compared. It runs on CPUs, over gloo.
"""

import signal

# Before torch is imported, which takes seconds: a rank without a handler is not signalled, and is
# asked only when it has one.
ASKED = []
signal.signal(signal.SIGUSR1, lambda number, frame: ASKED.append(number))

import argparse
import json
import os
import shutil
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# What the job file names as "saved".
SAVED = 85
# The newest may be torn by a failing disk, and the one before it unread.
KEEP = 2
FEATURES = 32


class Job:
    """The job's end of its socket. Without Tidegate there is none, and nothing is committed."""

    def __init__(self):
        self.lines = None
        path = os.environ.get("TIDEGATE_SOCKET")
        if path:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(path)
            self.lines = self.socket.makefile("r")

    def commit(self, step, path):
        if self.lines is None:
            return
        names = sorted(os.listdir(path))
        files = [{"path": name, "bytes": os.path.getsize(os.path.join(path, name))} for name in names]
        message = {"commit": {"step": step, "path": path, "files": files}}
        self.socket.sendall(json.dumps(message).encode() + b"\n")
        for line in self.lines:
            answer = json.loads(line)
            # A request to save may come between; the signal and the file tell of it as well.
            if "save" not in answer:
                break
        else:
            sys.exit("the agent hung up before it answered a commit")
        if "committed" not in answer:
            sys.exit(f"the commit of step {step} was refused: {answer}")


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def checkpoints(directory):
    """Whole ones, the newest last."""
    names = [name for name in os.listdir(directory) if name.startswith("step-")]
    return sorted(os.path.join(directory, name) for name in names if not name.endswith(".tmp"))


def save(directory, step, state):
    """Complete under its name, or not there."""
    whole = os.path.join(directory, f"step-{step:08}")
    if not os.path.isdir(whole):
        partial = whole + ".tmp"
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        with open(os.path.join(partial, "state.pt"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        sync(partial)
        os.rename(partial, whole)
        sync(directory)
    return whole


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
    default = os.environ.get("TIDEGATE_CHECKPOINT_DIR", "checkpoints")
    parser.add_argument("--checkpoint-dir", default=default)
    return parser.parse_args()


def resume(directory, rank, model, optimizer):
    """All ranks go on from the step that rank 0 has found."""
    found = checkpoints(directory) if rank == 0 else []
    chosen = [found[-1] if found else None]
    dist.broadcast_object_list(chosen, src=0)
    if chosen[0] is None:
        return 0
    state = torch.load(os.path.join(chosen[0], "state.pt"))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = Job() if rank == 0 else None
    os.makedirs(args.checkpoint_dir, exist_ok=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = resume(args.checkpoint_dir, rank, model, optimizer)
    if rank == 0:
        print(f"begins after step {step}", flush=True)
    # Keeps DDP from ordering its buckets anew after the first step of each run: gradients would be
    # summed in another order, and the loss would depend on where the run was stopped.
    parallel = DistributedDataParallel(model, find_unused_parameters=True)

    def save_and_commit():
        if rank == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            job.commit(step, save(args.checkpoint_dir, step, state))
            print(f"committed step {step}", flush=True)
            # Only now: the one before was the newest that counted.
            for old in checkpoints(args.checkpoint_dir)[:-KEEP]:
                shutil.rmtree(old)
        # No rank leaves before the checkpoint counts.
        dist.barrier()

    while step < args.steps:
        began = time.monotonic()
        inputs, wanted = batch(step, rank)
        loss = torch.nn.functional.mse_loss(parallel(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        asked = is_asked(rank)
        if asked or step % args.save_every == 0 or step == args.steps:
            save_and_commit()
        if asked and step < args.steps:
            sys.exit(SAVED)
        time.sleep(max(0.0, began + args.step_ms / 1000 - time.monotonic()))
    if rank == 0:
        inputs, wanted = batch(1 << 30, 0)
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        print(f"final step={step} loss={loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
