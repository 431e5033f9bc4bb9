"""Behaves as Hugging Face's Trainer does with enable_jit_checkpoint, by its sources
(trainer_jit_checkpoint.py of transformers 5.24), without needing it:

* TERM starts a timer of 3 s, which sets a flag: each process its own, and a second TERM before
  that starts a second timer;
* at the next boundary of a step it saves checkpoint-N; meanwhile a file in there,
  checkpoint-is-incomplete.txt, says that it is not whole;
* then it stops training, puts the handler back that was there before, and `train` returns: the
  script goes on, and as a rule ends with 0.

What a user adds are the lines below `trainer.train`. It trains until there is a file `finish` in its
directory.
"""

import json
import os
import signal
import threading
import time

from client import Job

ROOT = os.environ["TIDEGATE_CHECKPOINT_DIR"]
SENTINEL = "checkpoint-is-incomplete.txt"
KILL_WAIT_S = 3
STEP_S = 0.02
LOG_EVERY = 10


def log(line):
    print(line, flush=True)


class CheckpointManager:
    def __init__(self, trainer):
        self.trainer = trainer
        self.is_checkpoint_requested = False
        self.original = signal.signal(signal.SIGTERM, self.sigterm_handler)
        log("JIT checkpoint signal handler registered for SIGTERM")

    def sigterm_handler(self, number, _):
        if self.is_checkpoint_requested:
            return
        log(f"SIGTERM received, will request JIT checkpoint after {KILL_WAIT_S}s")
        threading.Timer(KILL_WAIT_S, self.enable_checkpoint).start()

    def enable_checkpoint(self):
        self.is_checkpoint_requested = True

    def execute_jit_checkpoint(self):
        self.is_checkpoint_requested = False
        log(f"Saving JIT checkpoint at step {self.trainer.state['global_step']}")
        directory = self.trainer.directory()
        os.makedirs(directory, exist_ok=True)
        sentinel = os.path.join(directory, SENTINEL)
        with open(sentinel, "w") as file:
            file.write("in progress...")
        self.trainer.save_checkpoint()
        os.remove(sentinel)

    def restore_handler(self):
        signal.signal(signal.SIGTERM, self.original)


class Trainer:
    def __init__(self):
        self.state = {"global_step": 0, "weight": 0}
        self.jit_manager = CheckpointManager(self)

    def directory(self):
        return os.path.join(ROOT, f"checkpoint-{self.state['global_step']}")

    def save_checkpoint(self):
        with open(os.path.join(self.directory(), "trainer_state.json"), "w") as file:
            json.dump(self.state, file)
            file.flush()
            os.fsync(file.fileno())

    def train(self, resume_from_checkpoint):
        if resume_from_checkpoint:
            with open(os.path.join(resume_from_checkpoint, "trainer_state.json")) as file:
                self.state = json.load(file)
        log(f"begins after step {self.state['global_step']}")
        should_training_stop = False
        while not should_training_stop and not os.path.exists("finish"):
            time.sleep(STEP_S)
            step = self.state["global_step"] + 1
            self.state = {"global_step": step, "weight": self.state["weight"] + step}
            if step % LOG_EVERY == 0:
                log(f"trained step {step}")
            if self.jit_manager.is_checkpoint_requested:
                should_training_stop = True
                self.jit_manager.execute_jit_checkpoint()
        self.jit_manager.restore_handler()


def newest():
    """Of those that are whole; `get_last_checkpoint` does not look at the sentinel."""
    names = [name for name in os.listdir(ROOT) if name.startswith("checkpoint-")]
    whole = [name for name in names if not os.path.exists(os.path.join(ROOT, name, SENTINEL))]
    last = max(whole, key=lambda name: int(name.removeprefix("checkpoint-")), default=None)
    return last and os.path.join(ROOT, last)


trainer = Trainer()
trainer.train(resume_from_checkpoint=newest())
job = Job()
if job.asked_to_save():
    job.commit(trainer.state["global_step"], trainer.directory())
else:
    log(f"final step={trainer.state['global_step']} weight={trainer.state['weight']}")
