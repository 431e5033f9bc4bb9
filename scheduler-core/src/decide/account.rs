//! What people ask about accounts: budgets, transfers, roles.

mod holds;

use tidegate_model::{AccountPath, SubmitKey, UserId};

use crate::accounts::{Account, AccountId, Cut, ROOT, Role, Size, Transfer, WHOLE};
use crate::books::{Books, BudgetAnswer, BudgetAsk, JobState};
use crate::core::Turn;
use crate::decide::money::Money;
use crate::decide::words;
use crate::decision::{Decision, Refusal};
use crate::event::AccountRequest;
use crate::evolve::{Broken, MAX_TRANSFERS};
use crate::money::{Amount, WINDOW};
use crate::policy::percent;

/// Most accounts: a tree that people can read, and whose figures cost little at each decision.
pub(crate) const MAX_ACCOUNTS: u32 = 4096;

/// The uid -1, by which systems say that there is none.
const NOBODY: UserId = UserId(u32::MAX);

/// What the whole cluster is given to while nobody has divided it.
const FIRST_ACCOUNT: &str = "default";

type Decided = Result<Vec<Decision>, Refusal>;

/// A store without a tree begins with one account that has everything.
pub(super) fn found_tree(turn: &mut Turn<'_>) -> Result<(), Broken> {
    let books = turn.books();
    let nobody = UserId(0);
    let undivided = books.accounts.children(ROOT).all(|child| child.size == Size::Share(0));
    if !undivided {
        return Ok(());
    }
    let is_first = |one: &&Account| one.label == FIRST_ACCOUNT && one.parent == Some(ROOT);
    let first = books.accounts.all().find(is_first);
    let (size, in_use) = (Size::Share(WHOLE), first.filter(|one| one.deleted.is_none()));
    let decision = match in_use.map(|one| one.id) {
        Some(account) => Decision::BudgetSet { account, size, cut: Cut::Now, by: nobody },
        None => Decision::AccountMade {
            account: first.map_or_else(|| books.accounts.next_id(), |one| one.id),
            parent: ROOT,
            label: FIRST_ACCOUNT.to_owned(),
            size,
            by: nobody,
        },
    };
    turn.take(decision)
}

pub(super) fn respond(
    turn: &mut Turn<'_>,
    by: UserId,
    request: &AccountRequest,
) -> Result<(), Broken> {
    let desk = Desk { books: turn.books(), now: turn.now(), by };
    let decided = match request {
        AccountRequest::Set { account, size, cut } => desk.set(account, *size, *cut),
        AccountRequest::Transfer { from, to, amount, permanent, key } => {
            desk.transfer(from, to, (*amount, *permanent), *key)
        }
        AccountRequest::Ask { account, size, reason } => desk.ask(account, *size, reason),
        AccountRequest::Answer { account, asked_by, grant, size } => {
            desk.answer(account, *asked_by, *grant, *size)
        }
        AccountRequest::Delete { account } => desk.delete(account),
        AccountRequest::SetRole { account, user, role } => {
            desk.set_role(account.as_ref(), *user, *role)
        }
    };
    match decided {
        Ok(decisions) => decisions.into_iter().try_for_each(|decision| turn.take(decision)),
        Err(refusal) => turn.take(Decision::Refused(refusal)),
    }
}

/// The account of a path that jobs may name.
pub(crate) fn leaf(books: &Books, path: &AccountPath) -> Result<AccountId, Refusal> {
    let account = known(books, path)?;
    if books.accounts.is_leaf(account.id) {
        return Ok(account.id);
    }
    let children = books.accounts.children(account.id).map(|child| books.accounts.name(child.id));
    let why = format!("it is divided further; {} is accepted", words::any_of(children));
    Err(Refusal::NoSuchAccount { given: path.to_string(), why })
}

fn known<'books>(books: &'books Books, path: &AccountPath) -> Result<&'books Account, Refusal> {
    books.accounts.find(path).ok_or_else(|| Refusal::NoSuchAccount {
        given: path.to_string(),
        why: "not known here; `tidegate accounts` lists them".to_owned(),
    })
}

/// Whether the user may do what needs `needed` there. An account on whose path nobody is named
/// yet is open to all for what members and readers may.
pub(crate) fn need(
    books: &Books,
    account: AccountId,
    user: UserId,
    needed: Role,
) -> Result<(), Refusal> {
    let role = books.accounts.role(account, user);
    let nobody_named = books.accounts.path(account).all(|one| one.roles.is_empty());
    let open = nobody_named && needed < Role::Manager;
    if open || role >= Some(needed) || books.policy.is_admin(user) {
        return Ok(());
    }
    Err(Refusal::RoleMissing { account: books.accounts.name(account), needed })
}

/// Who asks, and of which books.
struct Desk<'books> {
    books: &'books Books,
    now: tidegate_model::Timestamp,
    by: UserId,
}

impl Desk<'_> {
    fn set(&self, path: &AccountPath, size: Size, cut: Cut) -> Decided {
        let accounts = &self.books.accounts;
        if let Some(account) = accounts.find(path) {
            let parent = account.parent.unwrap_or(ROOT);
            need(self.books, parent, self.by, Role::Manager)?;
            self.holds(parent, Some(account.id), size)?;
            self.holds_children(account, size)?;
            self.holds_given(account, size)?;
            // A cut that is under way goes on as it began.
            let cut_through = account.excess_at(self.now) == Amount::ZERO;
            let unchanged = account.size == size && (cut_through || cut == Cut::Gradual);
            // Nobody is hurt by a cut of what nobody has used.
            let unused = account.claim(self.now) == Amount::ZERO;
            let cut = if unused { Cut::Now } else { cut };
            let (account, by) = (account.id, self.by);
            let set = Decision::BudgetSet { account, size, cut, by };
            return Ok(if unchanged { Vec::new() } else { vec![set] });
        }
        if path.as_str() == "root" {
            return Err(cannot(
                "root is what the whole cluster is called; it has all that is installed, and its \
                 children are set by their own names"
                    .to_owned(),
            ));
        }
        let (above, label) = match path.as_str().rsplit_once('/') {
            Some((above, label)) => (above.parse::<AccountPath>().ok(), label),
            None => (None, path.as_str()),
        };
        let parent = match &above {
            Some(above) => known(self.books, above)?.id,
            None => ROOT,
        };
        need(self.books, parent, self.by, Role::Manager)?;
        self.may_divide(parent)?;
        self.holds(parent, None, size)?;
        let deleted = accounts.find_any(path).map(|account| account.id);
        let account = deleted.unwrap_or_else(|| accounts.next_id());
        if account.0 > MAX_ACCOUNTS {
            return Err(cannot(format!(
                "{MAX_ACCOUNTS} accounts are made, as many as there may be"
            )));
        }
        let (label, by) = (label.to_owned(), self.by);
        Ok(vec![Decision::AccountMade { account, parent, label, size, by }])
    }

    /// Jobs run under leaves only: an account with live jobs is not divided.
    fn may_divide(&self, parent: AccountId) -> Result<(), Refusal> {
        let live = self.live_jobs(parent);
        if live == 0 || !self.books.accounts.is_leaf(parent) {
            return Ok(());
        }
        let name = self.books.accounts.name(parent);
        Err(cannot(format!(
            "{name} has {live} live jobs, and jobs run under leaf accounts only; it can be divided \
             when they have ended"
        )))
    }

    fn transfer(
        &self,
        from: &AccountPath,
        to: &AccountPath,
        (amount, permanent): (Amount, bool),
        key: Option<SubmitKey>,
    ) -> Decided {
        let (from, to) = (known(self.books, from)?, known(self.books, to)?);
        need(self.books, from.id, self.by, Role::Manager)?;
        let own = key.map(|key| (self.by, key));
        let under_key = |one: &&Transfer| own.is_some() && one.key == own;
        if let Some(made) = from.transfers.iter().find(under_key) {
            let same = made.amount == Amount::ZERO - amount
                && made.until.is_none() == permanent
                && to.transfers.iter().any(|one| one.key == own);
            let why = "the key was used for another transfer; use a new one";
            return if same { Ok(Vec::new()) } else { Err(cannot(why.to_owned())) };
        }
        let accounts = &self.books.accounts;
        let nested = accounts.path(from.id).any(|one| one.id == to.id)
            || accounts.path(to.id).any(|one| one.id == from.id);
        if nested || amount <= Amount::ZERO {
            return Err(cannot(
                "a transfer is of more than 0 GPU-hours, between accounts of which neither is \
                 part of the other"
                    .to_owned(),
            ));
        }
        let money = Money::at(self.books, self.now);
        let spare = accounts
            .path(from.id)
            .take_while(|one| !accounts.path(to.id).any(|other| other.id == one.id))
            .map(|one| {
                let row = money.sheet.row(one.id);
                let own = accounts.stated(one.id) - one.given(self.now);
                own.min(row.limit - row.claim)
            })
            .min()
            .unwrap_or_default()
            .at_least(Amount::ZERO);
        // The reserve of what is given goes with it, so somewhat less than the rest remains.
        if amount > spare {
            return Err(cannot(format!(
                "{amount} GPU-hours asked; {} can give up to {spare}, what is its own and not claimed \
                 of its limit",
                accounts.name(from.id)
            )));
        }
        let full = |one: &Account| {
            let lasting = one.transfers.iter().filter(|t| t.until.is_none_or(|u| self.now < u));
            lasting.count() >= MAX_TRANSFERS
        };
        if accounts.path(from.id).chain(accounts.path(to.id)).any(full) {
            return Err(cannot(format!(
                "{MAX_TRANSFERS} transfers of one of these accounts are in force, as many as there \
                 may be; set its budget instead"
            )));
        }
        let until = (!permanent).then(|| self.now.plus(WINDOW));
        let (from, to, by) = (from.id, to.id, self.by);
        Ok(vec![Decision::BudgetTransferred { from, to, amount, until, by, key }])
    }

    fn ask(&self, path: &AccountPath, size: Size, reason: &str) -> Decided {
        let account = known(self.books, path)?.id;
        need(self.books, account, self.by, Role::Member)?;
        let (reason, by) = (words::reason(reason)?.to_owned(), self.by);
        let same = |ask: &BudgetAsk| ask.size == size && ask.reason == reason;
        if self.books.asked.get(&(account, by)).is_some_and(same) {
            return Ok(Vec::new());
        }
        Ok(vec![Decision::BudgetAsked { account, size, reason, by }])
    }

    fn answer(
        &self,
        path: &AccountPath,
        asked_by: UserId,
        grant: bool,
        size: Option<Size>,
    ) -> Decided {
        let account = known(self.books, path)?.id;
        let parent = self.books.accounts.get(account).and_then(|one| one.parent).unwrap_or(ROOT);
        need(self.books, parent, self.by, Role::Manager)?;
        let Some(ask) = self.books.asked.get(&(account, asked_by)) else {
            let same = |answer: &BudgetAnswer| {
                let asked = size.is_none_or(|size| size == answer.size);
                (answer.by, answer.granted, asked) == (self.by, grant, true)
            };
            // Who repeats it has not heard the answer.
            if self.books.answered.get(&(account, asked_by)).is_some_and(same) {
                return Ok(Vec::new());
            }
            return Err(cannot(format!("{asked_by} has asked for nothing in {path}")));
        };
        if size.is_some_and(|size| size != ask.size) {
            let now = told(ask.size);
            return Err(cannot(format!(
                "{asked_by} asks for {now} in {path} by now; look at `tidegate budget show {path}`, \
                 then answer that"
            )));
        }
        let mut decisions =
            if grant { self.set(path, ask.size, Cut::Gradual)? } else { Vec::new() };
        let (granted, by) = (grant, self.by);
        decisions.push(Decision::BudgetAnswered { account, asked_by, granted, by });
        Ok(decisions)
    }

    fn delete(&self, path: &AccountPath) -> Decided {
        let account = match self.books.accounts.find_any(path) {
            Some(account) if account.deleted.is_some() => account,
            Some(_) | None => known(self.books, path)?,
        };
        need(self.books, account.parent.unwrap_or(ROOT), self.by, Role::Manager)?;
        // Who repeats it has not heard the answer.
        if account.deleted.is_some() {
            return Ok(Vec::new());
        }
        let children = self.books.accounts.children(account.id).count();
        let live = self.live_jobs(account.id);
        if children > 0 || live > 0 {
            return Err(cannot(format!(
                "{path} has {live} live jobs and {children} accounts below it; it can be deleted \
                 when it has none"
            )));
        }
        Ok(vec![Decision::AccountDeleted { account: account.id, by: self.by }])
    }

    fn live_jobs(&self, account: AccountId) -> usize {
        let jobs = self.books.jobs.values().filter(|job| {
            job.account == account
                && (!matches!(job.state, JobState::Ended { .. }) || job.has_live_attempt())
        });
        jobs.count()
    }

    fn set_role(&self, path: Option<&AccountPath>, user: UserId, role: Option<Role>) -> Decided {
        let account = match path {
            Some(path) => known(self.books, path)?.id,
            None => ROOT,
        };
        need(self.books, account, self.by, Role::Manager)?;
        if user == NOBODY {
            return Err(cannot(format!(
                "uid {user} is nobody: systems use it for \"no user\"; a uid up to {} is accepted",
                NOBODY.0 - 1
            )));
        }
        let known = self.books.accounts.get(account).and_then(|one| one.roles.get(&user)).copied();
        let by = self.by;
        let set = Decision::RoleSet { account, user, role, by };
        Ok(if known == role { Vec::new() } else { vec![set] })
    }
}

/// A size as people write it.
fn told(size: Size) -> String {
    match size {
        Size::Share(share) => percent(share),
        Size::Fixed(amount) => format!("{amount} GPU-hours"),
    }
}

fn cannot(why: String) -> Refusal {
    Refusal::CannotHold { why }
}
