"""Behaves as PyTorch Lightning does under SLURMEnvironment(auto_requeue=True), by its sources
(trainer/connectors/signal_connector.py and checkpoint_connector.py of 2.6), without needing it:

* it is Slurm's where there is SLURM_NTASKS, and only there handlers are installed; several of them
  need SLURM_NTASKS_PER_NODE;
* USR1 saves inside the handler, on every rank, for the save is a collective; rank 0 writes
  hpc_ckpt_N.ckpt and calls `scontrol requeue $SLURM_JOB_ID`, which is not there;
* TERM is bypassed with a line in the log (since 2.0 it leaves after its batch all the same; this
  one trains on, as those before do);
* it does not leave by itself: the scheduler ends it;
* it resumes from the hpc_ckpt_N.ckpt with the largest N.

`Committing` is what a user adds, in Lightning a subclass of TorchCheckpointIO given as a plugin.
It trains until there is a file `finish` in its directory.
"""

import glob
import json
import os
import re
import signal
import subprocess
import time

from client import Job

ROOT = os.environ["TIDEGATE_CHECKPOINT_DIR"]
STEP_S = 0.02
LOG_EVERY = 10


def log(line):
    print(line, flush=True)


class Collectives:
    """Each rank's word is a file: a handler may gather while it interrupts a gathering."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.place = os.path.join(ROOT, "sync", os.environ["TIDEGATE_ATTEMPT"])
        os.makedirs(self.place, exist_ok=True)

    def _file(self, name, rank):
        return os.path.join(self.place, f"{name}.{rank}")

    def gather(self, name, word):
        """What every rank says."""
        own = self._file(name, self.rank)
        with open(own + ".new", "w") as file:
            json.dump(word, file)
        os.rename(own + ".new", own)
        all_of_them = [self._file(name, rank) for rank in range(self.world)]
        while not all(map(os.path.exists, all_of_them)):
            time.sleep(0.001)
        return [json.load(open(one)) for one in all_of_them]

    def forget(self, name):
        os.remove(self._file(name, self.rank))


class Committing:
    """Lightning calls it on rank 0, and the file is there when the call below has returned."""

    def save_checkpoint(self, checkpoint, path):
        with open(path + ".part", "w") as file:
            json.dump(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".part", path)
        # The one line: the directory holds other things, too.
        Job().commit(checkpoint["global_step"], ROOT, [os.path.basename(path)])


class Trainer:
    def __init__(self):
        self.rank = int(os.environ.get("SLURM_PROCID", "0"))
        self.ranks = Collectives(self.rank, int(os.environ.get("SLURM_NTASKS", "1")))
        # Replaced as a whole: the handler may look at any time.
        self.state = {"global_step": 0, "weight": 0}
        self.saves = 0
        if self.ranks.world > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise RuntimeError("You set `--ntasks` in your SLURM bash script, without ...-per-node")
        if "SLURM_NTASKS" in os.environ:
            log("SLURM auto-requeueing enabled. Setting signal handlers.")
            signal.signal(signal.SIGUSR1, self.slurm_sigusr_handler)
            signal.signal(signal.SIGTERM, lambda number, _: log(f"Bypassing SIGTERM: {number}"))

    def slurm_sigusr_handler(self, number, _):
        log(f"Handling auto-requeue signal: {number}")
        self.save_checkpoint(os.path.join(ROOT, f"hpc_ckpt_{newest() + 1}.ckpt"))
        if self.rank == 0:
            command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
            try:
                code = subprocess.call(command)
            except FileNotFoundError:
                code = subprocess.call(" ".join(command), shell=True)
            log(f"Requeuing SLURM job {command[-1]} failed with error code {code}")

    def save_checkpoint(self, path):
        self.saves += 1
        if self.rank == 0:
            Committing().save_checkpoint(self.state, path)
        # Trainer.save_checkpoint ends with a barrier of all ranks.
        self.ranks.gather(f"saved-{self.saves}", None)

    def fit(self):
        if newest():
            with open(os.path.join(ROOT, f"hpc_ckpt_{newest()}.ckpt")) as file:
                self.state = json.load(file)
        log(f"begins after step {self.state['global_step']}")
        finished = False
        while not finished:
            step = self.state["global_step"] + 1
            time.sleep(STEP_S)
            slopes = self.ranks.gather(f"step-{step}", [step, os.path.exists("finish")])
            weight = self.state["weight"] + slopes[0][0]
            self.state = {"global_step": step, "weight": weight}
            if step % LOG_EVERY == 0:
                log(f"trained step {step}")
            finished = slopes[0][1]
        log(f"final step={self.state['global_step']} weight={self.state['weight']}")


def newest():
    """The largest N; 0 is none."""
    names = glob.glob(os.path.join(ROOT, "hpc_ckpt_*.ckpt"))
    return max((int(re.search(r"_(\d+)\.ckpt$", name).group(1)) for name in names), default=0)


Trainer().fit()
