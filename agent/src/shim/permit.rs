//! The task's newest ask for a permit to write, and what its job is told of the answer.
//!
//! The connection that asked holds the ask: when it is gone, so is the ask. It is written to a
//! file for the starter, and the answer is read from another. What is not here: connections
//! (`door`), and who decides.

use std::mem;
use std::time::{Duration, Instant};

use tidegate_model::WriteClass;

use crate::durable;
use crate::job_protocol::{Done, Grant, MAX_ASK_BYTES, MAX_ASK_FILES, Progress, ToJob, Wish};
use crate::permits::{AskRecord, PermitRecord};
use crate::since_boot::SinceBoot;
use crate::task_dir::{TaskDir, bytes_of, load};

/// Longest wait that a job can ask for: no collective has a longer watchdog.
const MAX_WAIT_S: u64 = 24 * 60 * 60;

/// Between two writes of how far a job is: each wakes starter and agent.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Before a write that failed is tried again.
const WRITE_RETRY: Duration = Duration::from_secs(1);

const STOPPING: &str = "the task is being stopped";

/// What is to be said, and to which connection.
pub(super) type Said = (u64, ToJob);

/// The ask of a task.
pub(super) struct Permits {
    dir: TaskDir,
    last: u64,
    open: Option<Open>,
    outbox: Vec<Said>,
    is_stopping: bool,
    /// What the file should hold.
    record: Option<AskRecord>,
    written_at: Option<Instant>,
    /// When to write it; none when the file holds it.
    next_write: Option<Instant>,
}

/// An ask that is not over.
struct Open {
    number: u64,
    holder: u64,
    answer: Option<PermitRecord>,
    has_lapsed: bool,
}

impl Permits {
    pub(super) fn of(dir: &TaskDir) -> Self {
        Self {
            dir: dir.clone(),
            last: 0,
            open: None,
            outbox: Vec::new(),
            is_stopping: false,
            record: None,
            written_at: None,
            next_write: None,
        }
    }

    /// A connection asks; its answer for now.
    pub(super) fn ask(&mut self, holder: u64, wish: &Wish) -> Result<ToJob, String> {
        let (class, files) = checked(wish)?;
        if self.is_stopping {
            return Err(STOPPING.to_owned());
        }
        let ask = self.last.saturating_add(1);
        if let Some(open) = self.open.take().filter(|open| open.holder != holder) {
            self.deny(&open, "a later ask of this task has taken its place");
        }
        self.last = ask;
        self.open = Some(Open { number: ask, holder, answer: None, has_lapsed: false });
        self.record = Some(AskRecord {
            number: ask,
            class,
            bytes: wish.bytes,
            files,
            patience_ms: wish.wait_s.map(|seconds| seconds.saturating_mul(1000)),
            asked_ms: SinceBoot::now(),
            written: 0,
            done: false,
            rated: 0,
        });
        self.write();
        Ok(ToJob::Wait { ask, position: None, expected_s: None })
    }

    /// None: nothing is to be said.
    pub(super) fn progress(&mut self, said: &Progress) -> Result<(), String> {
        self.held(said.permit)?;
        if let Some(record) = &mut self.record {
            record.written = said.bytes;
        }
        let due = self.written_at.and_then(|at| at.checked_add(PROGRESS_INTERVAL));
        self.next_write = self.next_write.or_else(|| Some(due.unwrap_or_else(Instant::now)));
        Ok(())
    }

    /// How a permit stands, or an ask that waits.
    pub(super) fn renew(&self, permit: u64) -> Result<ToJob, String> {
        Ok(self.held(permit)?.stands())
    }

    pub(super) fn done(&mut self, said: &Done) -> Result<ToJob, String> {
        self.held(said.permit)?;
        if let (Some(record), Some(bytes)) = (&mut self.record, said.bytes) {
            record.written = bytes;
        }
        self.end();
        Ok(ToJob::Done { permit: said.permit })
    }

    /// Takes the answer that the starter has written, if it is to this ask.
    pub(super) fn read(&mut self) {
        let Some(open) = &mut self.open else { return };
        // One that cannot be read is none: the starter's next one replaces it.
        let answer = load::<PermitRecord>(&self.dir.permit()).ok().flatten();
        let Some(answer) = answer.filter(|answer| answer.ask() == open.number) else { return };
        let lowered = open.answer.as_ref().and_then(|before| answer.rated_no_higher(before));
        let before = open.answer.replace(answer);
        let (was_lapsed, now) = (mem::take(&mut open.has_lapsed), SinceBoot::now());
        open.has_lapsed = open.is_over(now);
        let is_news = before.is_none_or(|before| open.is_news_after(&before))
            || was_lapsed != open.has_lapsed;
        if is_news {
            self.outbox.push((open.holder, open.stands()));
        }
        if matches!(open.answer, Some(PermitRecord::Denied { .. })) {
            self.end();
        } else if let Some((record, rated)) = self.record.as_mut().zip(lowered) {
            // Until the coordinator hears of it the rate before counts.
            record.rated = rated;
            self.write();
        }
    }

    /// Does what time has brought.
    pub(super) fn turn(&mut self, now: Instant) {
        if let Some(open) = &mut self.open
            && !open.has_lapsed
            && open.is_over(SinceBoot::now())
        {
            open.has_lapsed = true;
            self.outbox.push((open.holder, open.stands()));
        }
        if self.next_write.is_some_and(|due| due <= now) {
            self.write();
        }
    }

    /// Until time brings something; none if it does not.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        let write = self.next_write.map(|due| due.saturating_duration_since(now));
        let lapse = self.open.as_ref().filter(|open| !open.has_lapsed).and_then(Open::until);
        let lapse = lapse.map(|until| Duration::from_millis(until.since(SinceBoot::now()).0));
        write.into_iter().chain(lapse).min()
    }

    /// The connection without which the ask is over.
    pub(super) fn holder(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.holder)
    }

    /// The task is being stopped: nobody is let through any more. Who writes may finish.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
        let is_granted = |open: &Open| matches!(open.answer, Some(PermitRecord::Granted { .. }));
        if let Some(open) = self.open.take_if(|open| !is_granted(open)) {
            self.deny(&open, STOPPING);
            self.end();
        }
    }

    /// The ask is over.
    pub(super) fn end(&mut self) {
        self.open = None;
        if let Some(record) = self.record.as_mut().filter(|record| !record.done) {
            record.done = true;
            self.write();
        }
    }

    /// What is to be said since the last call.
    pub(super) fn take_said(&mut self) -> Vec<Said> {
        mem::take(&mut self.outbox)
    }

    fn held(&self, permit: u64) -> Result<&Open, String> {
        let open = self.open.as_ref().filter(|open| open.number == permit);
        open.ok_or_else(|| match &self.open {
            Some(open) => format!("permit: {permit} is over; {} is asked for or held", open.number),
            None => format!("permit: {permit} is not held; ask for one"),
        })
    }

    fn deny(&mut self, open: &Open, why: &str) {
        let deny = ToJob::Deny { ask: open.number, why: why.to_owned(), retry_after_s: None };
        self.outbox.push((open.holder, deny));
    }

    fn write(&mut self) {
        let now = Instant::now();
        let Some(record) = &self.record else { return };
        let written = bytes_of(record).and_then(|bytes| durable::publish(&self.dir.ask(), &bytes));
        self.written_at = Some(now);
        self.next_write = if written.is_ok() { None } else { now.checked_add(WRITE_RETRY) };
    }
}

impl Open {
    fn until(&self) -> Option<SinceBoot> {
        match &self.answer {
            Some(PermitRecord::Granted { until_ms, .. }) => Some(*until_ms),
            Some(PermitRecord::Waits { .. } | PermitRecord::Denied { .. }) | None => None,
        }
    }

    fn is_over(&self, now: SinceBoot) -> bool {
        self.until().is_some_and(|until| until <= now)
    }

    /// Whether the job is to be told; that it holds for longer is not worth its while.
    fn is_news_after(&self, before: &PermitRecord) -> bool {
        let rates = |answer: &PermitRecord| match answer {
            PermitRecord::Granted { bytes_per_s, after_bytes_per_s, .. } => {
                Some((*bytes_per_s, *after_bytes_per_s))
            }
            PermitRecord::Waits { .. } | PermitRecord::Denied { .. } => None,
        };
        let Some(answer) = &self.answer else { return false };
        match (rates(answer), rates(before)) {
            (Some(now), Some(before)) => now != before,
            (Some(_), None) | (None, Some(_)) => true,
            (None, None) => answer != before,
        }
    }

    fn stands(&self) -> ToJob {
        let ask = self.number;
        match self.answer.clone() {
            None => ToJob::Wait { ask, position: None, expected_s: None },
            Some(PermitRecord::Waits { ask, position, expected_ms }) => ToJob::Wait {
                ask,
                position: Some(position),
                expected_s: Some(expected_ms.div_ceil(1000)),
            },
            Some(PermitRecord::Denied { ask, why, retry_after_ms }) => {
                let retry_after_s = retry_after_ms.map(|span| span.div_ceil(1000));
                ToJob::Deny { ask, why, retry_after_s }
            }
            Some(PermitRecord::Granted {
                ask, bytes_per_s, after_bytes_per_s, until_ms, ..
            }) => {
                let lapsed = self.has_lapsed;
                ToJob::Grant(Grant {
                    permit: ask,
                    bytes_per_s: if lapsed { after_bytes_per_s } else { bytes_per_s },
                    until_s: until_ms.since(SinceBoot::now()).0 / 1000,
                    after_bytes_per_s,
                    lapsed,
                })
            }
        }
    }
}

/// The class of an ask that makes sense, and its files; 0 = not said.
fn checked(wish: &Wish) -> Result<(WriteClass, u32), String> {
    if !(1..=MAX_ASK_BYTES).contains(&wish.bytes) {
        let given = wish.bytes;
        return Err(format!(
            "bytes: {given} given; what the whole gang will write is accepted, 1 to {MAX_ASK_BYTES}"
        ));
    }
    let files = wish.files.unwrap_or(0);
    let Some(files) = u32::try_from(files).ok().filter(|files| *files <= MAX_ASK_FILES) else {
        return Err(format!(
            "files: {files} given; what the whole gang will create is accepted, 0 to {MAX_ASK_FILES}"
        ));
    };
    if let Some(wait) = wish.wait_s.filter(|wait| *wait > MAX_WAIT_S) {
        return Err(format!("wait_s: {wait} given; 0 to {MAX_WAIT_S} is accepted"));
    }
    let class = wish.class.parse().map_err(|why| format!("class: {why}"))?;
    Ok((class, files))
}
