//! How a request to save, what became of it, and a checkpoint are written in files and messages of
//! this node.
//!
//! What is not here: who acts on them (`shim`), and the words of the job's socket
//! ([`crate::job_protocol`]).

use serde::{Deserialize, Serialize};
use tidegate_model::{Bytes, Commit, DecisionSeq, Save, SaveDelivery, SaveSeen, SaveTarget, Span};

use crate::procs::ProcessId;
use crate::record::cut;

/// Most processes that are signalled for one request: far above the ranks of a node and what its
/// launchers start again within one grace.
pub const MAX_ASKED: usize = 1024;

/// [`Save`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaveRecord {
    /// The journal record that ordered it.
    pub request: u64,
    signal: Option<String>,
    target: TargetRecord,
    grace_ms: u64,
    why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TargetRecord {
    Ranks,
    Rank0,
    Task,
}

impl From<Save> for SaveRecord {
    fn from(save: Save) -> Self {
        let Save { request, signal, target, grace, why } = save;
        let target = match target {
            SaveTarget::Ranks => TargetRecord::Ranks,
            SaveTarget::Rank0 => TargetRecord::Rank0,
            SaveTarget::Task => TargetRecord::Task,
        };
        let signal = signal.map(|signal| signal.to_string());
        Self { request: request.0, signal, target, grace_ms: grace.0, why: cut(why) }
    }
}

impl TryFrom<SaveRecord> for Save {
    type Error = String;

    fn try_from(record: SaveRecord) -> Result<Self, String> {
        let SaveRecord { request, signal, target, grace_ms, why } = record;
        let target = match target {
            TargetRecord::Ranks => SaveTarget::Ranks,
            TargetRecord::Rank0 => SaveTarget::Rank0,
            TargetRecord::Task => SaveTarget::Task,
        };
        let signal = signal.map(|signal| signal.parse()).transpose()?;
        Ok(Self { request: DecisionSeq(request), signal, target, grace: Span(grace_ms), why })
    }
}

/// How far a request came, as the shim keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavingRecord {
    /// Which. A later one while this one is under way takes its place, with all that was sent.
    pub request: u64,
    /// Written before each is signalled: none is signalled twice.
    pub asked: Vec<AskedRecord>,
    /// Whether there are ranks, and all of them ignore the signal.
    pub unwilling: bool,
}

/// The intent to signal a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedRecord {
    /// The rank.
    pub process: ProcessId,
    /// Whether the signal has been sent, for sure.
    pub sent: bool,
}

impl SavingRecord {
    /// What is said of it. With its shim alive, an intent that is not yet done is being done; with
    /// its shim dead, nobody will ever know.
    #[must_use]
    pub fn seen(&self, shim_is_alive: bool) -> SaveSeen {
        let sent = self.asked.iter().filter(|asked| asked.sent).count();
        let delivery = if sent < self.asked.len() && !shim_is_alive {
            SaveDelivery::MaybeSent
        } else if sent > 0 {
            SaveDelivery::Signalled { ranks: u32::try_from(sent).unwrap_or(u32::MAX) }
        } else if self.unwilling {
            SaveDelivery::Unwilling
        } else {
            SaveDelivery::Announced
        };
        SaveSeen { request: DecisionSeq(self.request), delivery }
    }
}

/// [`SaveSeen`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeenRecord {
    request: u64,
    delivery: DeliveryRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum DeliveryRecord {
    Announced,
    Signalled { ranks: u32 },
    MaybeSent,
    Unwilling,
}

impl From<SaveSeen> for SeenRecord {
    fn from(seen: SaveSeen) -> Self {
        let delivery = match seen.delivery {
            SaveDelivery::Announced => DeliveryRecord::Announced,
            SaveDelivery::Signalled { ranks } => DeliveryRecord::Signalled { ranks },
            SaveDelivery::MaybeSent => DeliveryRecord::MaybeSent,
            SaveDelivery::Unwilling => DeliveryRecord::Unwilling,
        };
        Self { request: seen.request.0, delivery }
    }
}

impl From<SeenRecord> for SaveSeen {
    fn from(record: SeenRecord) -> Self {
        let delivery = match record.delivery {
            DeliveryRecord::Announced => SaveDelivery::Announced,
            DeliveryRecord::Signalled { ranks } => SaveDelivery::Signalled { ranks },
            DeliveryRecord::MaybeSent => SaveDelivery::MaybeSent,
            DeliveryRecord::Unwilling => SaveDelivery::Unwilling,
        };
        Self { request: DecisionSeq(record.request), delivery }
    }
}

/// [`Commit`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitRecord {
    /// The training step; grows within a task.
    pub step: u64,
    /// Absolute path of the checkpoint's directory.
    pub path: String,
    /// Of its files, as stat says.
    pub bytes: u64,
    /// The newest request that was announced before the job said so.
    pub request: Option<u64>,
}

impl From<Commit> for CommitRecord {
    fn from(commit: Commit) -> Self {
        let Commit { step, path, bytes, request } = commit;
        Self { step, path, bytes: bytes.0, request: request.map(|request| request.0) }
    }
}

impl From<CommitRecord> for Commit {
    fn from(record: CommitRecord) -> Self {
        let CommitRecord { step, path, bytes, request } = record;
        Self { step, path, bytes: Bytes(bytes), request: request.map(DecisionSeq) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::SaveSignal;

    #[test]
    fn a_request_reads_back_what_it_wrote() {
        let save = Save {
            request: DecisionSeq(7),
            signal: Some(SaveSignal::Usr2),
            target: SaveTarget::Rank0,
            grace: Span(5),
            why: "why".into(),
        };
        let text = serde_json::to_string(&SaveRecord::from(save.clone())).unwrap();
        let read: SaveRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(Save::try_from(read), Ok(save));
    }

    #[test]
    fn an_intent_without_its_signal_is_maybe_sent_once_its_shim_is_dead() {
        let check = |sent: &[bool], unwilling, alive, expected| {
            let process = ProcessId { pid: 2, start: 3 };
            let asked = sent.iter().map(|sent| AskedRecord { process, sent: *sent }).collect();
            let seen = SavingRecord { request: 4, asked, unwilling }.seen(alive);
            assert_eq!(seen, SaveSeen { request: DecisionSeq(4), delivery: expected });
        };
        check(&[], false, true, SaveDelivery::Announced);
        check(&[], true, true, SaveDelivery::Unwilling);
        check(&[true, true], false, false, SaveDelivery::Signalled { ranks: 2 });
        check(&[true, false], false, true, SaveDelivery::Signalled { ranks: 1 });
        check(&[true, false], false, false, SaveDelivery::MaybeSent);
        check(&[false], false, true, SaveDelivery::Announced);
    }
}
