//! Recounts the books from scratch. Counters are not trusted because increments look right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tidegate_model::{GpuUuid, TaskId, Timestamp};

use crate::accounts::{Account, Accounts, Purse};
use crate::books::{Attempt, Books, Job, JobState};
use crate::charge::{Charge, rebook};
use crate::index::Index;
use crate::money::{Amount, WINDOW};

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

pub(crate) fn audit(books: &Books, now: Timestamp) -> Vec<Violation> {
    let mut found = Vec::new();
    for job in books.jobs.values() {
        audit_job(job, &mut found);
        for attempt in &job.attempts {
            audit_attempt(attempt, &mut found);
        }
    }
    audit_holdings(books, &mut found);
    if books.index != recounted(books) {
        found.push(Violation("an index differs from its recount".to_owned()));
    }
    audit_money(books, now, &mut found);
    audit_budgets(books, now, &mut found);
    let judged = |id| books.jobs.get(&id).is_some_and(|job| job.judged.is_some());
    found.extend(books.rehearsals.violation(judged).map(|why| Violation(why.to_owned())));
    found
}

/// Children have no more than their parent's own budget and what was transferred to them, and a
/// transfer takes as much as it gives.
fn audit_budgets(books: &Books, now: Timestamp, found: &mut Vec<Violation>) {
    let accounts = &books.accounts;
    let reserve = books.policy.sharing.small_reserve;
    let sheet = accounts.sheet(now, reserve);
    if *sheet != accounts.sheet_anew(now, reserve) {
        found.push(Violation("budgets that are remembered differ from those anew".to_owned()));
    }
    for parent in accounts.live().filter(|one| !accounts.is_leaf(one.id)) {
        let (mut have, mut moved) = (Amount::ZERO, Amount::ZERO);
        for child in accounts.children(parent.id) {
            have += sheet.row(child.id).budget;
            moved += child.transferred(now);
        }
        let most = (accounts.base(parent.id, now) + moved).at_least(Amount::ZERO);
        if have > most {
            let name = accounts.name(parent.id);
            let why = format!("the children of {name} have {} of {}", have.0, most.0);
            found.push(Violation(why));
        }
    }
    let mut moved: BTreeMap<_, Amount> = BTreeMap::new();
    for account in accounts.all() {
        for one in account.lasting(now).filter(|one| [one.from, one.to].contains(&account.id)) {
            let both = (one.from, one.to, one.until, one.key);
            *moved.entry(both).or_default() += one.amount;
            if [one.from, one.to].iter().any(|id| accounts.is_deleted(*id)) {
                let name = accounts.name(account.id);
                found.push(Violation(format!("{name} has a transfer with a deleted account")));
            }
        }
    }
    if moved.into_values().any(|sum| sum != Amount::ZERO) {
        found.push(Violation("a transfer gives other than it takes".to_owned()));
    }
}

/// What accounts and users are said to have spent and promised equals the recount from what
/// attempts held, to the microsecond, as long as all jobs of the window are still in the books.
fn audit_money(books: &Books, now: Timestamp, found: &mut Vec<Violation>) {
    let empty = |one: &Account| Account::made(one.id, one.parent, &one.label, one.size);
    let mut recount =
        match Accounts::restored(books.accounts.all().map(empty), books.accounts.installed()) {
            Ok(recount) => recount,
            Err(error) => return found.push(Violation(error.to_string())),
        };
    for job in books.jobs.values() {
        let charge = Charge::of(job, |_| true);
        rebook(&mut recount, (job.account, job.user), &Charge::default(), &charge);
    }
    let complete = books.policy.keep_ended >= WINDOW;
    for (account, again) in books.accounts.all().zip(recount.all()) {
        let name = books.accounts.name(account.id);
        let mut check = |what: &str, said: Amount, counted: Amount| {
            // Jobs that are forgotten before their time has slid out have spent, and promise nothing.
            let exact = complete || what.ends_with("pledge");
            let holds = if exact { said == counted } else { said >= counted };
            if !holds {
                let why = format!("{name}: {what} is {} and recounts to {}", said.0, counted.0);
                found.push(Violation(why));
            }
        };
        check("charged", account.charged.value(now), again.charged.value(now));
        check("free", account.free.value(now), again.free.value(now));
        check("pledge", account.pledge.value(now), again.pledge.value(now));
        for (user, purse) in &account.purses {
            let none = Purse::default();
            let again = again.purses.get(user).unwrap_or(&none);
            check("a user's charge", purse.charged.value(now), again.charged.value(now));
            check("a user's free time", purse.free.value(now), again.free.value(now));
            check("a user's small use", purse.small_use(now), again.small_use(now));
            check("a user's pledge", purse.pledge.value(now), again.pledge.value(now));
        }
    }
}

fn audit_job(job: &Job, found: &mut Vec<Violation>) {
    let id = job.id;
    let numbers = job.attempts.iter().map(|attempt| attempt.id.number);
    let newest = u32::try_from(job.attempts.len()).unwrap_or(u32::MAX);
    let active = match job.state {
        JobState::Active { attempt } => Some(attempt),
        JobState::Pending { .. } | JobState::Ended { .. } => None,
    };
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(Violation(format!("{id}: {rule}")));
        }
    };
    check(numbers.eq(1..=newest), "attempts are numbered from 1 without gaps");
    check(active.is_none_or(|number| number == newest), "only the newest attempt is active");
    check(job.judged.is_none() || job.spec.rehearsal().is_some(), "only a rehearsal is judged");
    check(job.failures <= newest, "failures are attempts");
    let steps = job.commits.iter().flat_map(|commits| commits.iter()).map(|one| one.step);
    check(steps.is_sorted(), "each commit goes beyond the one before it");
}

fn audit_attempt(attempt: &Attempt, found: &mut Vec<Violation>) {
    let id = attempt.id;
    let tasks = &attempt.tasks;
    let released = tasks.iter().all(|task| task.released);
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(Violation(format!("{id}: {rule}")));
        }
    };
    check(!tasks.is_empty(), "a gang has a task");
    check(attempt.ended.is_none() || released, "an ended attempt holds nothing");
    check(tasks.iter().all(|t| !t.released || t.exit.is_some()), "what is released has ended");
    let started = tasks.iter().any(|task| task.started);
    check(!started || attempt.granted.is_some(), "nothing starts before the whole gang is granted");
    let prepared = tasks.iter().all(|task| task.port.is_some());
    check(attempt.granted.is_none() || prepared, "a granted gang is prepared as a whole");
    check(attempt.running.is_none() || attempt.granted.is_some(), "what runs was granted");
}

/// No GPU in two live attempts but as holder and heir; what nodes say is held or inherited is what
/// attempts have.
fn audit_holdings(books: &Books, found: &mut Vec<Violation>) {
    let mut held: BTreeMap<&GpuUuid, TaskId> = BTreeMap::new();
    let mut inherited: BTreeMap<&GpuUuid, TaskId> = BTreeMap::new();
    let mut tasks: BTreeSet<TaskId> = BTreeSet::new();
    let live = books.jobs.values().flat_map(|job| &job.attempts);
    for (id, task) in live.flat_map(Attempt::tasks).filter(|(_, task)| !task.released) {
        tasks.insert(id);
        let heirs = books.nodes.get(&task.place.node).map(|node| &node.heirs);
        for gpu in &task.place.gpus {
            let inherits = heirs.is_some_and(|heirs| heirs.get(gpu) == Some(&id));
            let of = if inherits { &mut inherited } else { &mut held };
            if let Some(other) = of.insert(gpu, id) {
                found.push(Violation(format!("{gpu} is held by {other} and by {id}")));
            }
        }
    }
    let heirs = books.nodes.values().map(|node| node.heirs.len()).sum::<usize>();
    if inherited.len() != heirs || inherited.keys().any(|gpu| !held.contains_key(gpu)) {
        found.push(Violation("who inherits a GPU differs from what nodes say".to_owned()));
    }
    let by_nodes = books.nodes.values().flat_map(|node| &node.held);
    if !held.into_iter().eq(by_nodes.map(|(gpu, task)| (gpu, *task)).collect::<BTreeMap<_, _>>()) {
        found.push(Violation("what nodes say is held differs from what tasks hold".to_owned()));
    }
    let on_nodes: BTreeSet<_> =
        books.nodes.values().flat_map(|node| &node.tasks).copied().collect();
    if tasks != on_nodes {
        found.push(Violation("the tasks on nodes differ from those not released".to_owned()));
    }
}

fn recounted(books: &Books) -> Index {
    let mut index = Index::default();
    for node in books.nodes.values() {
        index.enter_node(node, &books.policy);
    }
    for job in books.jobs.values() {
        index.enter(job, &books.policy.sharing);
    }
    index
}
