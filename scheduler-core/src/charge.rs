//! What a job's attempts are charged and promised, as a pure function of the job; the windows and
//! pledges of accounts and users are kept up to the differences, and recounted by `audit`.

use std::collections::BTreeMap;

use tidegate_model::{Timestamp, UserId};

use crate::accounts::{AccountId, Accounts, Purse};
use crate::books::{Attempt, Held, Job};
use crate::decision::Standing;
use crate::money::{Amount, Pledge, Rate, Window};

/// The windows that time is booked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Protected and Funded.
    Charged,
    /// Free.
    Free,
    /// Protected, of small jobs; also in `Charged`.
    Small,
}

/// All that a job contributes to its account and user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Charge {
    /// Changes of the rate, by window and instant.
    pub(crate) points: BTreeMap<(Class, Timestamp), i64>,
    /// Promised.
    pub(crate) pledge: Pledge,
    /// Promised to small jobs.
    pub(crate) small_pledge: Pledge,
}

impl Attempt {
    /// The rate at which it is charged.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.terms.weight.rate(self.gpus())
    }

    /// What it is promised and has not had.
    pub(crate) fn pledge(&self) -> Pledge {
        if self.stop.is_some() || self.ended.is_some() || self.is_broken() {
            return Pledge::default();
        }
        match (self.promised_until, self.running) {
            (Some(until), Some(_)) => Pledge::running(self.rate(), until),
            _ if self.standing == Standing::Protected && self.running.is_none() => {
                Pledge::lump(self.rate().over(self.terms.protect))
            }
            _ => Pledge::default(),
        }
    }
}

impl Charge {
    /// What the job contributes: its live attempts, and those that `also` names (an attempt that a
    /// change ends).
    pub(crate) fn of(job: &Job, counts: impl Fn(&Attempt) -> bool) -> Self {
        let mut charge = Self::default();
        for attempt in job.attempts.iter().filter(|attempt| counts(attempt)) {
            let rate = attempt.rate();
            for held in &attempt.held {
                charge.book(attempt, held, rate);
            }
            let pledge = attempt.pledge();
            charge.pledge = charge.pledge + pledge;
            if attempt.terms.small && attempt.standing == Standing::Protected {
                charge.small_pledge = charge.small_pledge + pledge;
            }
        }
        if let Some(reservation) = &job.reservation {
            charge.pledge = charge.pledge + Pledge::lump(reservation.pledge);
        } else if let (Some(carried), Some(last), false) =
            (job.carried, job.attempts.last(), job.cancelled.is_some())
        {
            // Once its successor is planned, that one holds the promise.
            let rate = last.terms.weight.rate(job.spec.gpus);
            charge.pledge = charge.pledge + Pledge::lump(rate.over(carried));
        }
        charge.points.retain(|_, change| *change != 0);
        charge
    }

    fn book(&mut self, attempt: &Attempt, held: &Held, rate: Rate) {
        let class = match held.standing {
            Standing::Protected | Standing::Funded => Class::Charged,
            Standing::Free => Class::Free,
        };
        self.span(class, held.from, held.until, rate);
        let small = attempt.terms.small && held.standing == Standing::Protected;
        if small {
            self.span(Class::Small, held.from, held.until, rate);
        }
        if class != Class::Charged {
            return;
        }
        for excused in &attempt.excused {
            let from = excused.from.max(held.from);
            let until = held.until.map_or(excused.until, |until| until.min(excused.until));
            if from < until {
                self.span(class, from, Some(until), -rate);
                if small {
                    self.span(Class::Small, from, Some(until), -rate);
                }
            }
        }
    }

    fn span(&mut self, class: Class, from: Timestamp, until: Option<Timestamp>, rate: Rate) {
        let mut add = |at, change: Rate| {
            let point = self.points.entry((class, at)).or_default();
            *point = point.saturating_add(change.0);
        };
        if until == Some(from) {
            return;
        }
        add(from, rate);
        if let Some(until) = until {
            add(until, -rate);
        }
    }
}

/// Books the difference between what a job contributed and what it contributes now.
pub(crate) fn rebook(
    accounts: &mut Accounts,
    (leaf, user): (AccountId, UserId),
    before: &Charge,
    after: &Charge,
) {
    let mut points = after.points.clone();
    for (key, change) in &before.points {
        let point = points.entry(*key).or_default();
        *point = point.saturating_sub(*change);
    }
    points.retain(|_, change| *change != 0);
    let pledge = after.pledge - before.pledge;
    let small_pledge = after.small_pledge - before.small_pledge;
    let same = Pledge::default();
    if points.is_empty() && pledge == same && small_pledge == same {
        return;
    }
    if let Some(account) = accounts.note(leaf) {
        let purse = account.purses.entry(user).or_default();
        purse.pledge = purse.pledge + pledge;
        purse.small_pledge = purse.small_pledge + small_pledge;
        for ((class, at), change) in &points {
            window_of(purse, *class).change(*at, Rate(*change));
        }
    }
    accounts.note_path(leaf, |account| {
        account.pledge = account.pledge + pledge;
        for ((class, at), change) in &points {
            match class {
                Class::Charged => account.charged.change(*at, Rate(*change)),
                Class::Free => account.free.change(*at, Rate(*change)),
                Class::Small => {}
            }
        }
    });
}

fn window_of(purse: &mut Purse, class: Class) -> &mut Window {
    match class {
        Class::Charged => &mut purse.charged,
        Class::Free => &mut purse.free,
        Class::Small => &mut purse.small,
    }
}

/// GPU-time of an attempt by how it stood, over its whole life: protected, funded, free, and what
/// of the first two is excused.
#[must_use]
pub fn totals(attempt: &Attempt, now: Timestamp) -> [Amount; 4] {
    let rate = attempt.rate();
    let mut totals = [Amount::ZERO; 4];
    let [protected, funded, free, excused] = &mut totals;
    for held in &attempt.held {
        let amount = rate.over(held.until.unwrap_or(now).since(held.from));
        match held.standing {
            Standing::Protected => *protected += amount,
            Standing::Funded => *funded += amount,
            Standing::Free => *free += amount,
        }
    }
    for one in &attempt.excused {
        let charged = attempt.held.iter().filter(|held| held.standing != Standing::Free);
        let spans = charged.map(|held| {
            let until = one.until.min(held.until.unwrap_or(now));
            rate.over(until.since(one.from.max(held.from)))
        });
        *excused += spans.sum();
    }
    totals
}
