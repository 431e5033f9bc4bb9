//! The budget tree: who may be charged how much, and what each account has been charged.
//!
//! What is not here: who may edit it (`decide::account`), and what an attempt is charged
//! (`charge`).

mod sheet;
mod stored;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_model::{AccountPath, SubmitKey, Timestamp, UserId};

use crate::money::{Amount, Pledge, Rate, WINDOW, Window};

use self::sheet::Budgets;
pub use self::sheet::{Row, Sheet};
pub use self::stored::NoTree;

/// An account's number; never reused. 0 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct AccountId(pub u32);

/// The root of the tree: all installed GPUs.
pub const ROOT: AccountId = AccountId(0);

/// Shares are counted in millionths of the parent.
pub const WHOLE: u32 = 1_000_000;

/// Most edits an account remembers for people: a screen of them.
pub(crate) const MAX_EDITS_KEPT: usize = 32;

/// How a budget is stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Millionths of the parent's budget.
    Share(u32),
    /// GPU-time per window.
    Fixed(Amount),
}

impl Size {
    /// In GPU-time, of a parent that has so much.
    #[must_use]
    pub fn of(self, parent: Amount) -> Amount {
        match self {
            Self::Share(share) => parent.part(share.into(), WHOLE.into()),
            Self::Fixed(amount) => amount,
        }
    }
}

/// How an edit that takes away comes into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Linearly over one window.
    Gradual,
    /// At once.
    Now,
}

/// One dated edit, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub by: UserId,
    /// The new size.
    pub size: Size,
    /// How a cut comes into force.
    pub cut: Cut,
}

/// GPU-time moved to or from an account for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The account that gave it. Those above it, below the common one, count it too.
    pub from: AccountId,
    /// The account it was given to.
    pub to: AccountId,
    /// Negative where it is taken from.
    pub amount: Amount,
    /// When it lapses; none = never.
    pub until: Option<Timestamp>,
    /// Who made it, under which key of their own: the same key makes no second one while it is known.
    pub key: Option<(UserId, SubmitKey)>,
}

/// What a person may do in an account and below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See jobs and figures.
    Reader,
    /// Also submit, and see to own jobs.
    Member,
    /// Also budgets and people of the subtree, and the jobs of others in it.
    Manager,
}

/// What one user has had in one account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Purse {
    /// Charged time.
    pub charged: Window,
    /// Free time.
    pub free: Window,
    /// Protected time of small jobs.
    pub small: Window,
    /// Promised.
    pub pledge: Pledge,
    /// Promised to small jobs.
    pub small_pledge: Pledge,
}

/// One node of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub id: AccountId,
    /// None of the root.
    pub parent: Option<AccountId>,
    /// The last label of its path; empty of the root.
    pub label: String,
    /// Its size now.
    pub size: Size,
    /// When the size was set.
    pub since: Timestamp,
    /// What it was above the new size then, of a gradual cut.
    pub excess: Amount,
    /// In force or lapsed within the window.
    pub transfers: Vec<Transfer>,
    /// The newest 32; the journal has all.
    pub edits: VecDeque<Edit>,
    /// By user.
    pub roles: BTreeMap<UserId, Role>,
    /// When it was deleted: it takes no jobs and shows no more, and keeps what it spent.
    pub deleted: Option<Timestamp>,
    /// Since when its claim is at or above its limit.
    pub over_since: Option<Timestamp>,
    /// When its last elder was named.
    pub elder_named: Option<Timestamp>,
    /// Charged here and below.
    pub charged: Window,
    /// Had free here and below.
    pub free: Window,
    /// Promised here and below.
    pub pledge: Pledge,
    /// By user; of a leaf.
    pub purses: BTreeMap<UserId, Purse>,
}

impl Account {
    pub(crate) fn made(id: AccountId, parent: Option<AccountId>, label: &str, size: Size) -> Self {
        Self {
            id,
            parent,
            label: label.to_owned(),
            size,
            since: Timestamp::default(),
            excess: Amount::ZERO,
            transfers: Vec::new(),
            edits: VecDeque::new(),
            roles: BTreeMap::new(),
            deleted: None,
            over_since: None,
            elder_named: None,
            charged: Window::default(),
            free: Window::default(),
            pledge: Pledge::default(),
            purses: BTreeMap::new(),
        }
    }

    /// What is charged and promised, here and below.
    #[must_use]
    pub fn claim(&self, t: Timestamp) -> Amount {
        self.charged.value(t) + self.pledge.value(t)
    }

    /// The share of a gradual cut that is still to come.
    pub(crate) fn excess_at(&self, t: Timestamp) -> Amount {
        let left = WINDOW.0.saturating_sub(t.since(self.since).0);
        self.excess.part(left, WINDOW.0)
    }

    /// Transfers in force.
    pub(crate) fn lasting(&self, t: Timestamp) -> impl Iterator<Item = &Transfer> {
        self.transfers.iter().filter(move |one| one.until.is_none_or(|until| t < until))
    }

    /// What it has by transfers; negative where it gave more than it was given.
    pub(crate) fn transferred(&self, t: Timestamp) -> Amount {
        self.lasting(t).map(|one| one.amount).sum()
    }

    /// What it has given away, by itself and by accounts below it: no budget of its own may be less.
    pub(crate) fn given(&self, t: Timestamp) -> Amount {
        self.lasting(t).map(|one| (Amount::ZERO - one.amount).at_least(Amount::ZERO)).sum()
    }
}

impl Purse {
    /// What is charged and promised to the user in this account.
    #[must_use]
    pub fn claim(&self, t: Timestamp) -> Amount {
        self.charged.value(t) + self.pledge.value(t)
    }

    /// What small jobs have drawn and may still draw.
    #[must_use]
    pub fn small_use(&self, t: Timestamp) -> Amount {
        self.small.value(t) + self.small_pledge.value(t)
    }
}

/// Where an account in use stands in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limb {
    pub(crate) id: AccountId,
    /// The place of its parent; the root is its own.
    pub(crate) parent: usize,
    /// The places of its children.
    pub(crate) children: Range<usize>,
}

/// The tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// By number: numbers have no gaps.
    by_id: Vec<Arc<Account>>,
    /// The accounts in use, parents before children, siblings together. Derived.
    limbs: Arc<[Limb]>,
    /// Of every account its place among them, by its number; none of a deleted one. Derived.
    places: Arc<[Option<usize>]>,
    /// Of every account the way from the root down to it, by its number. Derived.
    ways: Arc<[Box<[AccountId]>]>,
    /// Charged when everything installed is: the root's budget per millisecond.
    installed: Rate,
    /// What was last found out of budgets and claims.
    memo: Memo,
}

/// What is still true: several sheets are asked for between two changes, and budgets stay as they are
/// while claims change. It tells nothing that the accounts do not.
#[derive(Debug, Default)]
struct Memo(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    budgets: Option<Budgets>,
    /// The last sheet that was asked for, its instant and its small reserve.
    sheet: Option<(Timestamp, u32, Arc<Sheet>)>,
}

impl Memo {
    fn known(&mut self) -> &mut Known {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&mut self) {
        *self.known() = Known::default();
    }

    /// Something was charged or promised: budgets are as they were.
    fn forget_claims(&mut self) {
        self.known().sheet = None;
    }
}

impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Memo {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Memo {}

impl Default for Accounts {
    fn default() -> Self {
        let root = Account::made(ROOT, None, "", Size::Share(WHOLE));
        let root_limb = Limb { id: ROOT, parent: 0, children: 1..1 };
        Self {
            by_id: vec![Arc::new(root)],
            limbs: Arc::new([root_limb]),
            places: Arc::new([Some(0)]),
            ways: Arc::new([Box::new([ROOT])]),
            installed: Rate::default(),
            memo: Memo::default(),
        }
    }
}

impl Accounts {
    /// One account, deleted ones included.
    #[must_use]
    pub fn get(&self, id: AccountId) -> Option<&Account> {
        self.by_id.get(slot(id)).map(Arc::as_ref)
    }

    /// All, in the order they were made; the root first, deleted ones included.
    pub fn all(&self) -> impl Iterator<Item = &Account> {
        self.by_id.iter().map(Arc::as_ref)
    }

    /// All that are in use; the root first.
    pub fn live(&self) -> impl Iterator<Item = &Account> {
        self.all().filter(|account| account.deleted.is_none())
    }

    /// The children in use, in the order they were made.
    pub fn children(&self, parent: AccountId) -> impl Iterator<Item = &Account> {
        let children = self.limb(parent).and_then(|limb| self.limbs.get(limb.children.clone()));
        children.into_iter().flatten().filter_map(|limb| self.get(limb.id))
    }

    pub(crate) fn is_deleted(&self, id: AccountId) -> bool {
        self.get(id).is_none_or(|account| account.deleted.is_some())
    }

    /// Whether jobs may run under it.
    #[must_use]
    pub fn is_leaf(&self, id: AccountId) -> bool {
        self.limb(id).is_none_or(|limb| limb.children.is_empty())
    }

    /// The accounts in use, parents before children, siblings together; the root first.
    pub(crate) fn limbs(&self) -> &[Limb] {
        &self.limbs
    }

    /// Where among them an account stands.
    pub(crate) fn place(&self, id: AccountId) -> Option<usize> {
        self.places.get(slot(id)).copied().flatten()
    }

    fn limb(&self, id: AccountId) -> Option<&Limb> {
        self.limbs.get(self.place(id)?)
    }

    /// Builds the tree anew after an account was made or deleted.
    pub(crate) fn grow(&mut self) {
        let mut below: BTreeMap<AccountId, Vec<AccountId>> = BTreeMap::new();
        for account in self.live() {
            if let Some(parent) = account.parent {
                below.entry(parent).or_default().push(account.id);
            }
        }
        let mut limbs = vec![Limb { id: ROOT, parent: 0, children: 0..0 }];
        let mut place = 0;
        while let Some(id) = limbs.get(place).map(|limb| limb.id) {
            let from = limbs.len();
            let children = below.remove(&id).unwrap_or_default();
            limbs.extend(children.into_iter().map(|id| Limb { id, parent: place, children: 0..0 }));
            let children = from..limbs.len();
            if let Some(limb) = limbs.get_mut(place) {
                limb.children = children;
            }
            place = place.saturating_add(1);
        }
        let mut places = vec![None; self.by_id.len()];
        for (place, limb) in limbs.iter().enumerate() {
            places.get_mut(slot(limb.id)).into_iter().for_each(|known| *known = Some(place));
        }
        self.places = places.into();
        self.limbs = limbs.into();
        let down = |account: &Arc<Account>| {
            let mut way: Box<[_]> = self.path(account.id).map(|above| above.id).collect();
            way.reverse();
            way
        };
        self.ways = self.by_id.iter().map(down).collect();
    }

    /// From the root down to it.
    pub(crate) fn way(&self, to: AccountId) -> &[AccountId] {
        self.ways.get(slot(to)).map_or(&[], AsRef::as_ref)
    }

    /// It and its ancestors, the root last.
    pub fn path(&self, id: AccountId) -> impl Iterator<Item = &Account> {
        std::iter::successors(self.get(id), |account| self.get(account.parent?))
    }

    /// The path as people write it; `root` of the root.
    #[must_use]
    pub fn name(&self, id: AccountId) -> String {
        let labels: Vec<_> = self.path(id).map(|account| account.label.as_str()).collect();
        let labels: Vec<_> = labels.into_iter().rev().filter(|label| !label.is_empty()).collect();
        if labels.is_empty() { "root".to_owned() } else { labels.join("/") }
    }

    /// The account of that path, deleted or not.
    #[must_use]
    pub fn find_any(&self, path: &AccountPath) -> Option<&Account> {
        let child = |parent: &Account, label: &str| {
            let mut all = self.all();
            all.find(|one| one.parent == Some(parent.id) && one.label == label)
        };
        path.as_str().split('/').try_fold(self.get(ROOT)?, child)
    }

    /// The account of that path, if it is in use.
    #[must_use]
    pub fn find(&self, path: &AccountPath) -> Option<&Account> {
        let found = self.find_any(path)?;
        self.path(found.id).all(|account| account.deleted.is_none()).then_some(found)
    }

    /// What the user may do there: the strongest role on the path.
    #[must_use]
    pub fn role(&self, id: AccountId, user: UserId) -> Option<Role> {
        self.path(id).filter_map(|account| account.roles.get(&user)).max().copied()
    }

    /// The number the next account gets.
    #[must_use]
    pub fn next_id(&self) -> AccountId {
        AccountId(u32::try_from(self.by_id.len()).unwrap_or(u32::MAX))
    }

    /// Makes an account under the number [`Accounts::next_id`]; no other number is taken.
    pub(crate) fn insert(&mut self, account: Account) -> bool {
        let is_next = account.id == self.next_id();
        if is_next {
            self.memo.forget();
            self.by_id.push(Arc::new(account));
            self.grow();
        }
        is_next
    }

    pub(crate) fn change(&mut self, id: AccountId) -> Option<&mut Account> {
        self.memo.forget();
        self.by_id.get_mut(slot(id)).map(Arc::make_mut)
    }

    /// Changes nothing that a budget depends on: neither size nor transfers.
    pub(crate) fn note(&mut self, id: AccountId) -> Option<&mut Account> {
        self.memo.forget_claims();
        self.by_id.get_mut(slot(id)).map(Arc::make_mut)
    }

    /// Likewise it and its ancestors alike.
    pub(crate) fn note_path(&mut self, id: AccountId, mut by: impl FnMut(&mut Account)) {
        let mut next = Some(id);
        while let Some(account) = next.and_then(|id| self.note(id)) {
            by(account);
            next = account.parent;
        }
    }

    /// What is charged when everything installed is, per millisecond.
    #[must_use]
    pub fn installed(&self) -> Rate {
        self.installed
    }

    pub(crate) fn set_installed(&mut self, rate: Rate) {
        self.memo.forget();
        self.installed = rate;
    }

    /// The root's budget.
    #[must_use]
    pub fn whole(&self) -> Amount {
        self.installed.over(WINDOW)
    }

    /// An account's own budget at `t`, transfers and scaling left out: what its children share.
    #[must_use]
    pub fn base(&self, id: AccountId, t: Timestamp) -> Amount {
        let path: Vec<_> = self.path(id).collect();
        let below_root = path.iter().rev().skip(1);
        below_root.fold(self.whole(), |parent, account| account.nominal(parent, t))
    }

    /// Its own budget as stated: what [`Accounts::base`] comes to when gradual cuts are through.
    pub(crate) fn stated(&self, id: AccountId) -> Amount {
        let path: Vec<_> = self.path(id).collect();
        let below_root = path.iter().rev().skip(1);
        below_root.fold(self.whole(), |parent, account| account.stated(parent))
    }

    /// Budgets and limits of all accounts at `t`, one row an account by number.
    #[must_use]
    pub fn sheet(&self, t: Timestamp, small_reserve: u32) -> Arc<Sheet> {
        let mut memo = self.memo.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { budgets, sheet } = &mut *memo;
        let known = sheet.as_ref().filter(|(at, reserve, _)| (*at, *reserve) == (t, small_reserve));
        if let Some((_, _, known)) = known {
            return Arc::clone(known);
        }
        let holds = budgets.take().filter(|of| of.hold_at(t, small_reserve));
        let of = budgets.insert(holds.unwrap_or_else(|| self.budgets(t, small_reserve)));
        let drawn_up = Arc::new(self.drawn_up(of, t));
        *sheet = Some((t, small_reserve, Arc::clone(&drawn_up)));
        drawn_up
    }

    /// The same with nothing that was found out before.
    pub(crate) fn sheet_anew(&self, t: Timestamp, small_reserve: u32) -> Sheet {
        self.drawn_up(&self.budgets(t, small_reserve), t)
    }
}

fn slot(id: AccountId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}

impl Account {
    /// Its size in GPU-time, a gradual cut included, transfers not: children share what is their
    /// parent's own.
    pub(crate) fn nominal(&self, parent: Amount, t: Timestamp) -> Amount {
        self.stated(parent) + self.excess_at(t)
    }

    /// Its size as stated.
    #[must_use]
    pub fn stated(&self, parent: Amount) -> Amount {
        self.size.of(parent)
    }
}
