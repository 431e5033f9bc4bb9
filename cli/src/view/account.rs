//! Accounts with their figures.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_model::{Span, Timestamp};
use tidegate_proto::{WireError, v1};

use crate::amount::{GpuTime, Size};
use crate::view::users::Users;
use crate::view::{as_ms, as_ms_or_null};

/// The sliding window: a gradual cut and a transfer last one.
const WINDOW: Span = Span::hours(7 * 24);

/// An account as shown. Figures are of this account and those below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    pub(crate) account: String,
    /// Null of the root.
    pub(crate) parent: Option<String>,
    pub(crate) leaf: bool,
    /// As it was stated; null of the root, which is what is installed.
    pub(crate) size: Option<Size>,
    #[serde(serialize_with = "as_ms")]
    pub(crate) since_ms: Timestamp,
    pub(crate) stated_gpu_us: GpuTime,
    /// What of a gradual cut has not come into force yet.
    pub(crate) cut_left_gpu_us: GpuTime,
    pub(crate) budget_gpu_us: GpuTime,
    pub(crate) limit_gpu_us: GpuTime,
    pub(crate) charged_gpu_us: GpuTime,
    pub(crate) pledged_gpu_us: GpuTime,
    pub(crate) claim_gpu_us: GpuTime,
    pub(crate) free_gpu_us: GpuTime,
    /// Of all users here and below.
    pub(crate) small_use_gpu_us: GpuTime,
    /// What each user may draw of the small reserve.
    pub(crate) small_allowance_gpu_us: GpuTime,
    /// Whether its children ask for more than it has and are scaled down.
    pub(crate) scaled: bool,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) over_since_ms: Option<Timestamp>,
    pub(crate) elder: Option<String>,
    pub(crate) users: Vec<Use>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) roles: Vec<Held>,
    /// The newest last.
    pub(crate) edits: Vec<Edit>,
    /// What nobody has answered yet.
    pub(crate) requests: Vec<Ask>,
}

/// What one user has of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Use {
    pub(crate) user: String,
    pub(crate) uid: u32,
    pub(crate) charged_gpu_us: GpuTime,
    pub(crate) pledged_gpu_us: GpuTime,
    pub(crate) claim_gpu_us: GpuTime,
    pub(crate) free_gpu_us: GpuTime,
    pub(crate) small_use_gpu_us: GpuTime,
}

/// What was moved to or from an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Transfer {
    pub(crate) amount_gpu_us: GpuTime,
    /// Null = it never lapses.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) until_ms: Option<Timestamp>,
}

/// A user's role in an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Held {
    pub(crate) user: String,
    pub(crate) uid: u32,
    pub(crate) role: &'static str,
}

/// A change of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Edit {
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
    pub(crate) by: String,
    pub(crate) by_uid: u32,
    pub(crate) size: Size,
    /// A cut came into force at once.
    pub(crate) now: bool,
}

/// What somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ask {
    pub(crate) user: String,
    pub(crate) uid: u32,
    pub(crate) size: Size,
    pub(crate) reason: String,
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
}

/// Accounts, parents before their children, and the instant that their figures are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Accounts {
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
    pub(crate) accounts: Vec<Account>,
}

impl Accounts {
    /// Reads the coordinator's view.
    ///
    /// # Errors
    /// If a figure is malformed.
    pub(crate) fn read(wire: v1::ListAccountsReply, users: &mut Users) -> Result<Self, WireError> {
        let read = |account| Account::read(account, users);
        let mut accounts: Vec<_> = wire.accounts.into_iter().map(read).collect::<Result<_, _>>()?;
        add_small_use(&mut accounts);
        Ok(Self { at_ms: Timestamp(wire.at_ms), accounts })
    }
}

/// Users are known at the leaves only. Parents come before their children, so backwards each
/// account is complete when it is added to its parent.
fn add_small_use(accounts: &mut [Account]) {
    let mut below: BTreeMap<String, GpuTime> = BTreeMap::new();
    for account in accounts.iter_mut().rev() {
        let own = account.users.iter().map(|one| one.small_use_gpu_us);
        let below_it = below.remove(&account.account).unwrap_or_default();
        account.small_use_gpu_us = own.fold(below_it, GpuTime::plus);
        if let Some(parent) = account.parent.clone() {
            let sum = below.entry(parent).or_default();
            *sum = sum.plus(account.small_use_gpu_us);
        }
    }
}

impl Account {
    fn read(wire: v1::AccountView, users: &mut Users) -> Result<Self, WireError> {
        let parent = (!wire.parent.is_empty()).then_some(wire.parent);
        let size = match &parent {
            Some(_) => Some(Size::read(wire.size)?),
            None => None,
        };
        let held = |role: v1::RoleView| Held {
            user: users.name(role.uid),
            uid: role.uid,
            role: role_word(role.role()),
        };
        let roles = wire.roles.into_iter().map(held).collect();
        let uses = wire.users.into_iter().map(|one| Use::read(&one, users));
        let uses = uses.collect::<Result<_, _>>()?;
        let edits = wire.edits.into_iter().map(|one| Edit::read(one, users));
        let edits = edits.collect::<Result<_, _>>()?;
        let requests = wire.asks.into_iter().map(|one| Ask::read(one, users));
        Ok(Self {
            account: wire.account,
            parent,
            leaf: wire.leaf,
            size,
            since_ms: Timestamp(wire.since_ms),
            stated_gpu_us: GpuTime::read(&wire.stated, "AccountView.stated")?,
            cut_left_gpu_us: GpuTime::read(&wire.cut_left, "AccountView.cut_left")?,
            budget_gpu_us: GpuTime::read(&wire.budget, "AccountView.budget")?,
            limit_gpu_us: GpuTime::read(&wire.limit, "AccountView.limit")?,
            charged_gpu_us: GpuTime::read(&wire.charged, "AccountView.charged")?,
            pledged_gpu_us: GpuTime::read(&wire.pledged, "AccountView.pledged")?,
            claim_gpu_us: GpuTime::read(&wire.claim, "AccountView.claim")?,
            free_gpu_us: GpuTime::read(&wire.free, "AccountView.free")?,
            small_use_gpu_us: GpuTime::default(),
            small_allowance_gpu_us: GpuTime::read(&wire.small_allowance, "AccountView.small")?,
            scaled: wire.scaled,
            over_since_ms: wire.over_since_ms.map(Timestamp),
            elder: (!wire.elder.is_empty()).then_some(wire.elder),
            users: uses,
            transfers: wire.transfers.iter().map(Transfer::read).collect::<Result<_, _>>()?,
            roles,
            edits,
            requests: requests.collect::<Result<_, _>>()?,
        })
    }

    /// How deep it lies below the root.
    pub(crate) fn depth(&self) -> usize {
        self.parent.as_ref().map_or(0, |_| self.account.split('/').count())
    }

    /// What of a window a cut still takes to come into force, if one is under way.
    pub(crate) fn cut_ends_in(&self, now: Timestamp) -> Option<Span> {
        let under_way = self.cut_left_gpu_us > GpuTime::default();
        under_way.then(|| self.since_ms.plus(WINDOW).since(now))
    }
}

impl Use {
    fn read(wire: &v1::UserUse, users: &mut Users) -> Result<Self, WireError> {
        Ok(Self {
            user: users.name(wire.uid),
            uid: wire.uid,
            charged_gpu_us: GpuTime::read(&wire.charged, "UserUse.charged")?,
            pledged_gpu_us: GpuTime::read(&wire.pledged, "UserUse.pledged")?,
            claim_gpu_us: GpuTime::read(&wire.claim, "UserUse.claim")?,
            free_gpu_us: GpuTime::read(&wire.free, "UserUse.free")?,
            small_use_gpu_us: GpuTime::read(&wire.small_use, "UserUse.small_use")?,
        })
    }
}

impl Transfer {
    fn read(wire: &v1::TransferView) -> Result<Self, WireError> {
        let amount_gpu_us = GpuTime::read(&wire.amount, "TransferView.amount")?;
        Ok(Self { amount_gpu_us, until_ms: wire.until_ms.map(Timestamp) })
    }
}

impl Edit {
    fn read(wire: v1::EditView, users: &mut Users) -> Result<Self, WireError> {
        let v1::EditView { at_ms, by_uid, size, now } = wire;
        let (at_ms, by, size) = (Timestamp(at_ms), users.name(by_uid), Size::read(size)?);
        Ok(Self { at_ms, by, by_uid, size, now })
    }
}

impl Ask {
    /// Reads the coordinator's view.
    ///
    /// # Errors
    /// If the size is malformed.
    pub(crate) fn read(wire: v1::AskView, users: &mut Users) -> Result<Self, WireError> {
        let v1::AskView { uid, size, reason, at_ms } = wire;
        let (user, size) = (users.name(uid), Size::read(size)?);
        Ok(Self { user, uid, size, reason, at_ms: Timestamp(at_ms) })
    }
}

fn role_word(role: v1::Role) -> &'static str {
    match role {
        v1::Role::Manager => "manager",
        v1::Role::Member => "member",
        v1::Role::Reader => "reader",
        v1::Role::Unspecified => "none",
    }
}
