//! What was used, with what may be used beside it.

use scheduler_core::{Account, AccountId, Purse, Refusal};
use tidegate_model::{AccountPath, UserId};
use tidegate_proto::{amount_bytes, v1};

use crate::report::{self, Class, Quantiles, Report, Used};
use crate::view::View;

/// Accounts in use, parents before their children, each with its users.
///
/// # Errors
/// If there is no account of that path.
pub(crate) fn report(
    view: &View,
    weeks: u32,
    below: Option<AccountPath>,
) -> Result<v1::ReportReply, Refusal> {
    let books = view.core.books();
    let tree = &books.accounts;
    let top = match below {
        Some(path) => match tree.find(&path) {
            Some(account) => account.id,
            None => {
                let why = "not known here; `tidegate accounts` lists them".to_owned();
                return Err(Refusal::NoSuchAccount { given: path.to_string(), why });
            }
        },
        None => scheduler_core::ROOT,
    };
    let report = report::report(books, view.at, weeks);
    let mut due: Vec<AccountId> = vec![top];
    let mut usages = Vec::new();
    let sheet = tree.sheet(view.at, books.policy.sharing.small_reserve);
    while let Some(account) = due.pop().and_then(|id| tree.get(id)) {
        let mut children: Vec<_> = tree.children(account.id).map(|child| child.id).collect();
        children.reverse();
        due.extend(children);
        let name = tree.name(account.id);
        let mut own = usage(name.clone(), report.used.get(&(account.id, None)));
        own.budget = amount_bytes(sheet.row(account.id).budget.0);
        own.pledged = amount_bytes(account.pledge.value(view.at).0);
        own.window_charged = amount_bytes(account.charged.value(view.at).0);
        usages.push(own);
        usages.extend(users(&name, account, &report));
    }
    let Report { from, at, complete_from, .. } = report;
    let (from_ms, at_ms, complete_from_ms) = (from.0, at.0, complete_from.0);
    Ok(v1::ReportReply { at_ms, from_ms, complete_from_ms, usages })
}

fn users(name: &str, account: &Account, report: &Report) -> Vec<v1::Usage> {
    let of = |(user, purse): (&UserId, &Purse)| {
        let used = report.used.get(&(account.id, Some(*user)));
        let mut usage = usage(name.to_owned(), used);
        usage.uid = Some(user.0);
        usage.pledged = amount_bytes(purse.pledge.value(report.at).0);
        usage.window_charged = amount_bytes(purse.charged.value(report.at).0);
        usage
    };
    account.purses.iter().map(of).collect()
}

fn usage(account: String, used: Option<&Used>) -> v1::Usage {
    let none = Used::default();
    let used = used.unwrap_or(&none);
    let waits = used.waits.iter().map(|(class, waits)| {
        let Quantiles { count, p50, p90, max } = Quantiles::of(waits);
        let class = match class {
            Class::Small => v1::WaitClass::Small,
            Class::Ordinary => v1::WaitClass::Ordinary,
            Class::Free => v1::WaitClass::Free,
        };
        v1::Waits { class: class.into(), count, p50_ms: p50.0, p90_ms: p90.0, max_ms: max.0 }
    });
    v1::Usage {
        account,
        charged: amount_bytes(used.charged.0),
        free: amount_bytes(used.free.0),
        overhead: amount_bytes(used.overhead.0),
        credited: amount_bytes(used.credited.0),
        lost: amount_bytes(used.lost.0),
        displaced: used.displaced,
        idle: amount_bytes(used.idle.0),
        looked_at: amount_bytes(used.looked_at.0),
        ended: amount_bytes(used.ended.0),
        waits: waits.collect(),
        ..v1::Usage::default()
    }
}
