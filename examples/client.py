"""A job's side of $TIDEGATE_SOCKET, for Python programs: copy it beside yours. No dependencies.

    job = Job()
    with job.permit(bytes=size, kind="periodic", wait_s=60, share=1 / world_size):
        with open(path, "wb") as file:
            job.write(file, data)          # at the granted rate
            file.flush(); os.fsync(file.fileno())
    job.commit(step, directory)
    if job.asked_to_save(): ...

One rank makes one, asks before the collective that saves, and hands its rate on, `None` included;
the others write with it and need no socket of their own:

    Writer(rate, share=1 / world_size).write(file, data)

See docs/job-protocol.md.
"""

import contextlib
import json
import os
import select
import socket
import time

# Pieces of a paced write take so long, in seconds.
PIECE = 0.01


class Refused(Exception):
    """The node, or the write gate, says no. Writing is possible all the same.

    `retry_after_s`: in so many seconds asking again is answered otherwise; None = not known, or it never is.
    """

    def __init__(self, why, retry_after_s=None):
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Writer:
    """Writes its `share` of a rate in bytes per second; None = not limited."""

    def __init__(self, bytes_per_s, share=1.0):
        self.bytes_per_s = bytes_per_s
        self._begin(share)

    def rate(self):
        """Bytes per second for this process; None = not limited."""
        rate = self.bytes_per_s
        return None if rate is None else max(rate * self.share, 1.0)

    def write(self, file, data):
        """Writes to a file object at the rate."""
        rest = memoryview(data).cast("B")
        while len(rest):
            rate = self.rate()
            size = len(rest) if rate is None else max(int(rate * PIECE), 1)
            piece, rest = rest[:size], rest[size:]
            if rate is not None:
                # Paid before it is written.
                now = time.monotonic()
                # A sleep that was too long is made up for, but no more than one.
                self.paid = max(self.paid, now - PIECE) + len(piece) / rate
                time.sleep(max(self.paid - now, 0))
            file.write(piece)
            self.written += len(piece)
            if rate is not None:
                # On its way to the storage now: a page cache would hand all of it on at once later.
                with contextlib.suppress(OSError):
                    file.flush()
                    at = file.tell() - len(piece)
                    os.posix_fadvise(file.fileno(), at, len(piece), os.POSIX_FADV_DONTNEED)

    def _begin(self, share):
        self.share, self.written = share, 0
        # When the pieces written so far are paid for.
        self.paid = time.monotonic()


class Job(Writer):
    """The job's end of its socket; writes at the rate of the permit that it holds."""

    def __init__(self, path=None):
        super().__init__(None)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path or os.environ["TIDEGATE_SOCKET"])
        self.unread = b""
        # The newest request to save, as the file $TIDEGATE_PREEMPT_FILE has it.
        self.request = None
        # What is held: the last `grant`.
        self.grant = None
        self.identity = self._ask({"hello": {}}, "hello")
        self.request = self.identity["request"] or self.request

    def asked_to_save(self):
        """The newest request to save, or None. Does not wait."""
        self._listen()
        return self.request

    @contextlib.contextmanager
    def permit(self, **wish):
        """Holds a permit; the same as `ask` and `done`."""
        self.ask(**wish)
        try:
            yield self.grant
        finally:
            self.done()

    def ask(self, bytes, kind="periodic", files=None, wait_s=None, share=1.0):
        """Waits for a permit for the whole gang, of whose rate this process uses `share`."""
        wish = {"bytes": bytes, "class": kind, "files": files, "wait_s": wait_s}
        self._hold(None)
        self._say({"ask": wish})
        while self.grant is None:
            self._take(self._hear())
        self._begin(share)

    def rate(self):
        # Another one may have been told meanwhile.
        self._listen()
        return super().rate()

    def progress(self, bytes):
        """Tells how much the whole gang has written since the permit."""
        self._say({"progress": {"permit": self.grant["permit"], "bytes": bytes}})

    def done(self, bytes=None):
        """Gives the permit back."""
        self._ask({"done": {"permit": self.grant["permit"], "bytes": bytes}}, "done")
        # Another rate may have come before the answer.
        self._hold(None)

    def commit(self, step, path, names=None):
        """Says that a directory is a complete, durable checkpoint; or some names in it are."""
        path = os.path.abspath(path)
        if names is None:
            found = (os.path.join(at, name) for at, _, below in os.walk(path) for name in below)
            names = [os.path.relpath(file, path) for file in found]
        sizes = [os.path.getsize(os.path.join(path, name)) for name in names]
        files = [{"path": name, "bytes": size} for name, size in zip(names, sizes)]
        self._ask({"commit": {"step": step, "path": path, "files": files}}, "committed")

    def _ask(self, message, answer):
        self._say(message)
        while True:
            told = self._hear()
            if answer in told:
                return told[answer]
            self._take(told)

    def _take(self, told):
        """What may come unasked."""
        if "refused" in told:
            raise Refused(told["refused"]["why"])
        if "deny" in told:
            self._hold(None)
            raise Refused(told["deny"]["why"], told["deny"].get("retry_after_s"))
        if "save" in told:
            self.request = told["save"]
        if "grant" in told:
            self._hold(told["grant"])

    def _hold(self, grant):
        self.grant = grant
        self.bytes_per_s = grant and grant["bytes_per_s"]

    def _say(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def _hear(self):
        while b"\n" not in self.unread:
            chunk = self.socket.recv(65536)
            if not chunk:
                raise ConnectionError("the job socket was closed")
            self.unread += chunk
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def _listen(self):
        """Takes what has come, without waiting."""
        while b"\n" in self.unread or select.select([self.socket], [], [], 0)[0]:
            self._take(self._hear())
