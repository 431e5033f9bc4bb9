//! The parts that records and snapshots share.

use scheduler_core::{
    Author, Excuse, Excused, Grounds, JobOutcome, MoveCause, Outcome, ParkReason, PermitOf, Place,
    RehearsalFault, Right, SaveReason, SaveStep, StopReason, Terms, Weight,
};
use tidegate_model::{GpuCount, NodeId, Span, Timestamp, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::permit::{class, class_message};
use tidegate_proto::{WireError, amount_bytes, parsed, required};

use crate::translate::{money, standing, standing_message};

pub(in crate::journal) fn place_message(place: &Place) -> wire::Place {
    let gpus = place.gpus.iter().map(ToString::to_string).collect();
    wire::Place { node: place.node.to_string(), gpus }
}

pub(in crate::journal) fn place(message: &wire::Place) -> Result<Place, WireError> {
    let node: NodeId = parsed(&message.node, "Place.node")?;
    let gpus =
        message.gpus.iter().map(|gpu| parsed(gpu, "Place.gpus")).collect::<Result<_, _>>()?;
    Ok(Place { node, gpus })
}

pub(in crate::journal) fn permit_message(permit: PermitOf) -> wire::PermitOf {
    wire::PermitOf {
        task: permit.task.to_string(),
        ask: permit.ask,
        class: class_message(permit.class).into(),
    }
}

pub(in crate::journal) fn permit(message: Option<wire::PermitOf>) -> Result<PermitOf, WireError> {
    let message = required(message, "PermitOf")?;
    Ok(PermitOf {
        task: parsed(&message.task, "PermitOf.task")?,
        ask: message.ask,
        class: class(message.class, "PermitOf.class")?,
    })
}

pub(in crate::journal) fn terms_message(terms: Terms) -> wire::Terms {
    wire::Terms {
        standing: standing_message(terms.standing).into(),
        protect_ms: terms.protect.0,
        weight: terms.weight.0,
        small: terms.small,
    }
}

/// Attempts of releases before terms were free work.
pub(in crate::journal) fn terms(message: Option<wire::Terms>) -> Result<Terms, WireError> {
    let Some(message) = message else { return Ok(Terms::FREE) };
    Ok(Terms {
        standing: standing(message.standing)?,
        protect: Span(message.protect_ms),
        weight: Weight(message.weight),
        small: message.small,
    })
}

pub(in crate::journal) fn excused_message(excused: Excused) -> wire::Excused {
    wire::Excused {
        from_ms: excused.from.0,
        until_ms: excused.until.0,
        why: excuse_number(excused.why),
    }
}

pub(in crate::journal) fn excused(message: wire::Excused) -> Result<Excused, WireError> {
    let (from, until) = (Timestamp(message.from_ms), Timestamp(message.until_ms));
    Ok(Excused { from, until, why: excuse(message.why)? })
}

pub(in crate::journal) fn shares_message(nodes: &[(NodeId, GpuCount)]) -> Vec<wire::NodeShare> {
    let share = |(node, gpus): &(NodeId, GpuCount)| wire::NodeShare {
        node: node.to_string(),
        gpus: gpus.0,
    };
    nodes.iter().map(share).collect()
}

pub(in crate::journal) fn shares(
    nodes: Vec<wire::NodeShare>,
) -> Result<Vec<(NodeId, GpuCount)>, WireError> {
    let share =
        |share: wire::NodeShare| Ok((parsed(&share.node, "NodeShare.node")?, GpuCount(share.gpus)));
    nodes.into_iter().map(share).collect()
}

pub(in crate::journal) fn save_step_number(step: SaveStep) -> i32 {
    use wire::decision::SaveStep as Number;
    match step {
        SaveStep::Acknowledged => Number::Acknowledged.into(),
        SaveStep::FirstByte => Number::FirstByte.into(),
    }
}

pub(in crate::journal) fn save_step(value: i32) -> Result<SaveStep, WireError> {
    use wire::decision::SaveStep as Number;
    let field = "SaveNoted.step";
    match Number::try_from(value) {
        Ok(Number::Acknowledged) => Ok(SaveStep::Acknowledged),
        Ok(Number::FirstByte) => Ok(SaveStep::FirstByte),
        Ok(Number::Unspecified) => Err(WireError::Missing { field }),
        Err(_) => Err(WireError::UnknownEnum { field, value }),
    }
}

pub(in crate::journal) fn save_reason_message(why: SaveReason) -> wire::SaveReason {
    use wire::save_reason::{Displaced, Drained, Rehearsed, Why};
    let why = match why {
        SaveReason::Displaced { by, grounds } => Why::Displaced(Displaced {
            by: by.to_string(),
            rule: right_number(grounds.rule),
            claimant_claim: amount_bytes(grounds.claimant.0.0),
            claimant_budget: amount_bytes(grounds.claimant.1.0),
            victim_claim: amount_bytes(grounds.victim.0.0),
            victim_budget: amount_bytes(grounds.victim.1.0),
        }),
        SaveReason::Drained { node } => Why::Drained(Drained { node: node.to_string() }),
        SaveReason::Rehearsed => Why::Rehearsed(Rehearsed {}),
    };
    wire::SaveReason { why: Some(why) }
}

pub(in crate::journal) fn save_reason(
    message: Option<wire::SaveReason>,
) -> Result<SaveReason, WireError> {
    use wire::save_reason::Why;
    Ok(match required(message.and_then(|message| message.why), "SaveReason.why")? {
        Why::Displaced(m) => SaveReason::Displaced {
            by: parsed(&m.by, "Displaced.by")?,
            grounds: Grounds {
                rule: right(m.rule)?,
                claimant: (
                    money(&m.claimant_claim, "Displaced.claimant_claim")?,
                    money(&m.claimant_budget, "Displaced.claimant_budget")?,
                ),
                victim: (
                    money(&m.victim_claim, "Displaced.victim_claim")?,
                    money(&m.victim_budget, "Displaced.victim_budget")?,
                ),
            },
        },
        Why::Drained(m) => SaveReason::Drained { node: parsed(&m.node, "Drained.node")? },
        Why::Rehearsed(_) => SaveReason::Rehearsed,
    })
}

pub(in crate::journal) fn park_reason_message(why: ParkReason) -> wire::ParkReason {
    use wire::park_reason::Why;
    let why = match why {
        ParkReason::Asked { by } => Why::AskedBy(by.0),
        ParkReason::NoProgress { attempts } => Why::AttemptsWithoutProgress(attempts),
        ParkReason::DependencyFailed { job } => Why::Dependency(job.to_string()),
    };
    wire::ParkReason { why: Some(why) }
}

pub(in crate::journal) fn park_reason(
    message: Option<wire::ParkReason>,
) -> Result<ParkReason, WireError> {
    use wire::park_reason::Why;
    Ok(match required(message.and_then(|message| message.why), "ParkReason.why")? {
        Why::AskedBy(user) => ParkReason::Asked { by: UserId(user) },
        Why::AttemptsWithoutProgress(attempts) => ParkReason::NoProgress { attempts },
        Why::Dependency(job) => {
            ParkReason::DependencyFailed { job: parsed(&job, "ParkReason.dependency")? }
        }
    })
}

/// An enum of the journal: both ways, with what is unknown refused by name.
macro_rules! journal_enum {
    ($to:ident, $from:ident, $core:ident, $field:literal, $($variant:ident),+) => {
        pub(in crate::journal) fn $to(value: $core) -> i32 {
            match value {
                $($core::$variant => wire::$core::$variant.into(),)+
            }
        }

        pub(in crate::journal) fn $from(value: i32) -> Result<$core, WireError> {
            match wire::$core::try_from(value) {
                $(Ok(wire::$core::$variant) => Ok($core::$variant),)+
                Ok(wire::$core::Unspecified) => Err(WireError::Missing { field: $field }),
                Err(_) => Err(WireError::UnknownEnum { field: $field, value }),
            }
        }
    };
}

journal_enum!(
    stop_reason_number,
    stop_reason,
    StopReason,
    "StopReason",
    Cancelled,
    GangBroken,
    StartTimeout,
    CannotSave,
    GraceOver,
    PlanFailed,
    Rehearsed,
    Stays
);
journal_enum!(
    outcome_number,
    outcome,
    Outcome,
    "Outcome",
    Done,
    Failed,
    Unsaved,
    Lost,
    Saved,
    Unknown
);
journal_enum!(job_outcome_number, job_outcome, JobOutcome, "JobOutcome", Done, Failed, Cancelled);
journal_enum!(
    fault_number,
    fault,
    RehearsalFault,
    "Rehearsal.fault",
    EndedEarly,
    Ignored,
    Unheard,
    Unsaved,
    LeftUnsaved,
    Stayed,
    TooEarly,
    BeganAgain,
    Unsettled
);
journal_enum!(excuse_number, excuse, Excuse, "Excuse", Saved, Fault);
journal_enum!(
    move_cause_number,
    move_cause,
    MoveCause,
    "MoveCause",
    Earlier,
    NodeGone,
    LateRelease
);
journal_enum!(
    right_number,
    right,
    Right,
    "Right",
    Free,
    Ratio,
    SmallerClaim,
    OwnOrder,
    Small,
    Reservation
);

pub(crate) fn author_message(by: Author) -> Option<wire::PolicyAuthor> {
    use wire::policy_author::Author as Kind;
    let author = match by {
        Author::Unknown => return None,
        Author::Configuration => Kind::Configuration(true),
        Author::User(user) => Kind::User(user.0),
    };
    Some(wire::PolicyAuthor { author: Some(author) })
}

pub(crate) fn author(message: Option<wire::PolicyAuthor>) -> Author {
    use wire::policy_author::Author as Kind;
    match message.and_then(|by| by.author) {
        None => Author::Unknown,
        Some(Kind::Configuration(_)) => Author::Configuration,
        Some(Kind::User(user)) => Author::User(UserId(user)),
    }
}
