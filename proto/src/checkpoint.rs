//! Conversions of what a job offers, is asked and has committed.

use tidegate_model::{
    ASK_AFTER_RANGE, AskAfter, AsksWithin, Bytes, CheckpointOffer, Commit, DecisionSeq, MAX_GRACE,
    Save, SaveDelivery, SaveSeen, SaveSignal, SaveTarget, Span,
};

use crate::v1;
use crate::wire_error::{WireError, narrowed, parsed, required};

/// Longest path of a checkpoint, in bytes: a report with one for each task fits a message.
pub const MAX_COMMIT_PATH: usize = 1024;

fn signal(name: Option<&str>, field: &'static str) -> Result<Option<SaveSignal>, WireError> {
    name.map(|name| parsed(name, field)).transpose()
}

fn target(value: i32, field: &'static str) -> Result<SaveTarget, WireError> {
    match v1::SaveTarget::try_from(value) {
        Ok(v1::SaveTarget::Ranks) => Ok(SaveTarget::Ranks),
        Ok(v1::SaveTarget::Rank0) => Ok(SaveTarget::Rank0),
        Ok(v1::SaveTarget::Task) => Ok(SaveTarget::Task),
        Ok(v1::SaveTarget::Unspecified) => Err(WireError::Missing { field }),
        Err(_) => Err(WireError::UnknownEnum { field, value }),
    }
}

impl From<SaveTarget> for v1::SaveTarget {
    fn from(target: SaveTarget) -> Self {
        match target {
            SaveTarget::Ranks => Self::Ranks,
            SaveTarget::Rank0 => Self::Rank0,
            SaveTarget::Task => Self::Task,
        }
    }
}

impl TryFrom<v1::CheckpointOffer> for CheckpointOffer {
    type Error = WireError;

    fn try_from(wire: v1::CheckpointOffer) -> Result<Self, WireError> {
        let code = |code| narrowed(code, "CheckpointOffer.saved_codes");
        Ok(Self {
            signal: signal(wire.signal.as_deref(), "CheckpointOffer.signal")?,
            target: target(wire.target, "CheckpointOffer.target")?,
            grace: Span(wire.grace_ms),
            bytes: wire.bytes.map(Bytes),
            asks_within: wire.asks_within_ms.map(asks_within).transpose()?,
            storage: parsed(&wire.storage, "CheckpointOffer.storage")?,
            saved_codes: wire.saved_codes.into_iter().map(code).collect::<Result<_, _>>()?,
            rehearsal: wire.ask_after_ms.map(ask_after).transpose()?,
        })
    }
}

impl From<CheckpointOffer> for v1::CheckpointOffer {
    fn from(offer: CheckpointOffer) -> Self {
        Self {
            signal: offer.signal.map(|signal| signal.to_string()),
            target: v1::SaveTarget::from(offer.target).into(),
            grace_ms: offer.grace.0,
            bytes: offer.bytes.map(|bytes| bytes.0),
            storage: offer.storage.to_string(),
            saved_codes: offer.saved_codes.into_iter().map(Into::into).collect(),
            asks_within_ms: offer.asks_within.map(|within| within.span().0),
            ask_after_ms: offer.rehearsal.map(|ask_after| ask_after.span().0),
        }
    }
}

fn ask_after(ms: u64) -> Result<AskAfter, WireError> {
    AskAfter::of(Span(ms)).ok_or_else(|| {
        let (least, most) = ASK_AFTER_RANGE;
        let why = format!("{} given; {least} to {most} is accepted", Span(ms));
        WireError::Invalid { field: "CheckpointOffer.ask_after_ms", why }
    })
}

fn asks_within(ms: u64) -> Result<AsksWithin, WireError> {
    AsksWithin::of(Span(ms)).ok_or_else(|| {
        let why = format!("{} given; 1ms to {MAX_GRACE} is accepted", Span(ms));
        WireError::Invalid { field: "CheckpointOffer.asks_within_ms", why }
    })
}

impl TryFrom<v1::Save> for Save {
    type Error = WireError;

    fn try_from(wire: v1::Save) -> Result<Self, WireError> {
        Ok(Self {
            request: request(wire.request, "Save.request")?,
            signal: signal(wire.signal.as_deref(), "Save.signal")?,
            target: target(wire.target, "Save.target")?,
            grace: Span(wire.grace_ms),
            why: wire.why,
        })
    }
}

impl From<Save> for v1::Save {
    fn from(save: Save) -> Self {
        Self {
            request: save.request.0,
            signal: save.signal.map(|signal| signal.to_string()),
            target: v1::SaveTarget::from(save.target).into(),
            grace_ms: save.grace.0,
            why: save.why,
        }
    }
}

impl TryFrom<v1::SaveSeen> for SaveSeen {
    type Error = WireError;

    fn try_from(wire: v1::SaveSeen) -> Result<Self, WireError> {
        use v1::save_seen::{Announced, Delivery, MaybeSent, Signalled, Unwilling};
        let delivery = match required(wire.delivery, "SaveSeen.delivery")? {
            Delivery::Announced(Announced {}) => SaveDelivery::Announced,
            Delivery::Signalled(Signalled { ranks }) => SaveDelivery::Signalled { ranks },
            Delivery::MaybeSent(MaybeSent {}) => SaveDelivery::MaybeSent,
            Delivery::Unwilling(Unwilling {}) => SaveDelivery::Unwilling,
        };
        Ok(Self { request: request(wire.request, "SaveSeen.request")?, delivery })
    }
}

impl From<SaveSeen> for v1::SaveSeen {
    fn from(SaveSeen { request, delivery }: SaveSeen) -> Self {
        use v1::save_seen::{Announced, Delivery, MaybeSent, Signalled, Unwilling};
        let delivery = match delivery {
            SaveDelivery::Announced => Delivery::Announced(Announced {}),
            SaveDelivery::Signalled { ranks } => Delivery::Signalled(Signalled { ranks }),
            SaveDelivery::MaybeSent => Delivery::MaybeSent(MaybeSent {}),
            SaveDelivery::Unwilling => Delivery::Unwilling(Unwilling {}),
        };
        Self { request: request.0, delivery: Some(delivery) }
    }
}

impl TryFrom<v1::Commit> for Commit {
    type Error = WireError;

    fn try_from(wire: v1::Commit) -> Result<Self, WireError> {
        let v1::Commit { step, path, bytes, request } = wire;
        if let Some(why) = path_refusal(&path) {
            return Err(WireError::Invalid { field: "Commit.path", why });
        }
        let request = request.map(DecisionSeq);
        Ok(Self { step, path, bytes: Bytes(bytes), request })
    }
}

impl From<Commit> for v1::Commit {
    fn from(Commit { step, path, bytes, request }: Commit) -> Self {
        Self { step, path, bytes: bytes.0, request: request.map(|request| request.0) }
    }
}

/// Why a path cannot be that of a checkpoint; none = it can.
#[must_use]
pub fn path_refusal(path: &str) -> Option<String> {
    if !path.starts_with('/') {
        return Some("give an absolute path".to_owned());
    }
    if path.chars().any(char::is_control) {
        return Some("a path with control characters is not accepted".to_owned());
    }
    let length = path.len();
    (length > MAX_COMMIT_PATH)
        .then(|| format!("{length} bytes long; at most {MAX_COMMIT_PATH} are accepted"))
}

fn request(number: u64, field: &'static str) -> Result<DecisionSeq, WireError> {
    if number == 0 { Err(WireError::Missing { field }) } else { Ok(DecisionSeq(number)) }
}
