//! The two parts of the cluster that are kept from a job which idle GPUs or its budget would let
//! start: the headroom that free work leaves, and what protected work may hold.

use crate::decide::pass::{Bid, Pass};
use crate::decide::victims::by_blocks;
use crate::policy::{part_of, percent};

/// What free work leaves idle, where that alone keeps a gang from idle GPUs that it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headroom {
    /// Idle GPUs of the kind.
    pub(super) idle: u32,
    /// Of them, those that stay idle.
    pub(super) kept: u32,
    part: u32,
}

impl Headroom {
    /// None if something else keeps the gang from starting free, or nothing does.
    pub(super) fn keeps(pass: &Pass<'_>, bid: &Bid<'_>) -> Option<Self> {
        let (job, shape) = (bid.claimant.job, bid.shape);
        let usable = pass.of_kind(bid).filter(|(_, spot)| spot.idle >= shape.per_node);
        let usable: Vec<_> = usable.map(|(index, _)| index).collect();
        by_blocks(pass.spots(), &usable, shape, job.spec.max_blocks).into_iter().next()?;
        let (idle, kept) = pass.headroom(bid.kind);
        let part = pass.books.policy.sharing.headroom;
        (idle.saturating_sub(kept) < job.spec.gpus.0).then_some(Self { idle, kept, part })
    }

    pub(super) fn line(self) -> String {
        let Self { idle, kept, part } = self;
        format!("of {idle} idle GPUs free work leaves {kept} idle ({} of all)", percent(part))
    }
}

/// What protected work holds where a funded job may not make it more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProtectedCap {
    /// GPUs.
    pub(super) held: u64,
    /// GPUs.
    pub(super) most: u64,
    part: u32,
}

impl ProtectedCap {
    pub(super) fn keeps(pass: &Pass<'_>, bid: &Bid<'_>) -> Option<Self> {
        let books = pass.books;
        let part = books.policy.sharing.protected_cap;
        let most = part_of(books.installed_gpus(), part);
        let reached = !pass.within_cap(&bid.claimant);
        reached.then_some(Self { held: books.index.protected_gpus, most, part })
    }

    pub(super) fn line(self, gpus: u64) -> String {
        let Self { held, most, part } = self;
        format!(
            "protected work holds {held} GPUs, and with its {gpus} would hold more than {most} ({} \
             of all), up to which ordinary jobs start protected",
            percent(part)
        )
    }
}
