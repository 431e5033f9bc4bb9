//! Accounts, budgets and roles. Figures are GPU-hours of a window.

use std::cmp::Ordering;

use tidegate_model::Timestamp;

use super::{Column, LEFT, RIGHT, below, or_dash, pairs, table};
use crate::amount::{GpuTime, Size};
use crate::show::text::plain;
use crate::show::time::{age, ago, away, coarse};
use crate::view::account::{Account, Accounts, Ask, Edit, Transfer, Use};

/// The newest edits that a person is shown; JSON has all.
const EDITS_SHOWN: usize = 8;

/// The tree, and below it what is special of some account.
pub(crate) fn accounts(tree: &Accounts, with_users: bool) -> String {
    const COLUMNS: [Column; 10] = [
        ("ACCOUNT", LEFT),
        ("BUDGET", RIGHT),
        ("SHARE", RIGHT),
        ("LIMIT", RIGHT),
        ("CHARGED", RIGHT),
        ("PLEDGED", RIGHT),
        ("CLAIM", RIGHT),
        ("RATIO", RIGHT),
        ("FREE", RIGHT),
        ("SMALL", RIGHT),
    ];
    let top = tree.accounts.first().map_or(0, Account::depth);
    let mut rows = Vec::new();
    for account in &tree.accounts {
        let depth = account.depth().saturating_sub(top);
        rows.push(row(account, depth, share(account, tree)));
        let users = account.users.iter().filter(|_| with_users);
        rows.extend(users.map(|one| user_row(one, account, depth)));
    }
    let mut text = table(&COLUMNS, rows.into_iter());
    let special: Vec<_> =
        tree.accounts.iter().flat_map(|account| special(account, tree.at_ms)).collect();
    legend(&mut text, &special);
    text
}

fn legend(text: &mut String, lines: &[String]) {
    if !lines.is_empty() {
        text.push_str("\n\n");
        text.push_str(&lines.join("\n"));
    }
}

fn indented(depth: usize, name: &str) -> String {
    format!("{:indent$}{name}", "", indent = depth.saturating_mul(2))
}

fn row(account: &Account, depth: usize, share: String) -> [String; 10] {
    [
        indented(depth, &account.account),
        account.budget_gpu_us.to_string(),
        share,
        account.limit_gpu_us.to_string(),
        account.charged_gpu_us.to_string(),
        account.pledged_gpu_us.to_string(),
        account.claim_gpu_us.to_string(),
        account.claim_gpu_us.percent_of(account.limit_gpu_us),
        account.free_gpu_us.to_string(),
        account.small_use_gpu_us.to_string(),
    ]
}

/// A user has no budget: the ratio is of the account's limit.
fn user_row(one: &Use, account: &Account, depth: usize) -> [String; 10] {
    let none = || "-".to_owned();
    [
        indented(depth.saturating_add(1), &format!("@{}", one.user)),
        none(),
        none(),
        none(),
        one.charged_gpu_us.to_string(),
        one.pledged_gpu_us.to_string(),
        one.claim_gpu_us.to_string(),
        one.claim_gpu_us.percent_of(account.limit_gpu_us),
        one.free_gpu_us.to_string(),
        one.small_use_gpu_us.to_string(),
    ]
}

/// Of the parent's budget: as stated, or worked out from GPU-hours.
fn share(account: &Account, tree: &Accounts) -> String {
    match account.size {
        Some(size @ Size::Share(_)) => size.to_string(),
        Some(Size::Fixed(amount)) => {
            let parent = account.parent.as_ref();
            let parent = tree.accounts.iter().find(|other| Some(&other.account) == parent);
            or_dash(parent.map(|one| amount.percent_of(one.budget_gpu_us)).unwrap_or_default())
        }
        None => "-".to_owned(),
    }
}

/// What is not so of every account, a line each.
fn special(account: &Account, now: Timestamp) -> Vec<String> {
    let name = plain(&account.account);
    let mut lines = Vec::new();
    if let Some(since) = account.over_since_ms {
        lines.push(format!("{name}: over its limit for {}", age(since, now)));
    }
    if let Some(left) = account.cut_ends_in(now) {
        let amount = account.cut_left_gpu_us;
        let left = coarse(left);
        lines.push(format!("{name}: a cut is under way, {amount} more in the next {left}"));
    }
    if account.scaled {
        lines.push(format!("{name}: its children ask for more than it has, and are scaled down"));
    }
    if let Some(job) = &account.elder {
        lines.push(format!("{name}: {} has waited longest and goes first", plain(job)));
    }
    lines
}

/// One account with what was done to its budget.
pub(crate) fn budget(account: &Account, now: Timestamp) -> String {
    let hours = |amount: GpuTime| format!("{amount} GPU-h");
    let stated = match (account.size, &account.parent) {
        (Some(size @ Size::Share(_)), Some(parent)) => format!("{size} of {parent}"),
        (Some(size), _) => size.to_string(),
        (None, _) => "all that is installed".to_owned(),
    };
    let mut facts = vec![
        ("account", account.account.clone()),
        ("size", format!("{stated}, for {}", age(account.since_ms, now))),
        ("budget", with_transfers(account)),
        ("limit", hours(account.limit_gpu_us)),
        ("charged", hours(account.charged_gpu_us)),
        ("pledged", hours(account.pledged_gpu_us)),
        (
            "claim",
            if account.limit_gpu_us > GpuTime::default() {
                let ratio = account.claim_gpu_us.percent_of(account.limit_gpu_us);
                format!("{}, {ratio} of the limit", hours(account.claim_gpu_us))
            } else {
                format!("{}; without a budget only free work runs", hours(account.claim_gpu_us))
            },
        ),
        ("free", hours(account.free_gpu_us)),
    ];
    if account.leaf {
        let (used, most) = (account.small_use_gpu_us, account.small_allowance_gpu_us);
        facts.push(("small", format!("{used} GPU-h; each user may draw {most}")));
    }
    let mut text = pairs(facts);
    legend(&mut text, &special(account, now));
    transfers(&mut text, &account.transfers, now);
    asks(&mut text, &account.requests, now);
    edits(&mut text, &account.edits, now);
    text
}

/// What of a budget is there by transfers, for they are in it and lapse.
fn with_transfers(account: &Account) -> String {
    let budget = format!("{} GPU-h", account.budget_gpu_us);
    let moved = account.transfers.iter().map(|one| one.amount_gpu_us);
    let moved = moved.fold(GpuTime::default(), GpuTime::plus);
    match moved.cmp(&GpuTime::default()) {
        Ordering::Equal => budget,
        Ordering::Greater => format!("{budget}, {moved} of it by transfers"),
        Ordering::Less => {
            let given = GpuTime(moved.0.saturating_neg());
            format!("{budget}, and {given} more are given away by transfers")
        }
    }
}

fn transfers(text: &mut String, transfers: &[Transfer], now: Timestamp) {
    const COLUMNS: [Column; 2] = [("TRANSFERRED", RIGHT), ("LAPSES", LEFT)];
    let row = |one: &Transfer| {
        let lapses = one.until_ms.map_or_else(|| "never".to_owned(), |at| away(at, now));
        [format!("{} GPU-h", one.amount_gpu_us), lapses]
    };
    below(text, &COLUMNS, transfers.iter().map(row).collect());
}

fn asks(text: &mut String, asks: &[Ask], now: Timestamp) {
    const COLUMNS: [Column; 4] =
        [("REQUESTED", RIGHT), ("USER", LEFT), ("WHEN", RIGHT), ("REASON", LEFT)];
    let row = |one: &Ask| {
        [one.size.to_string(), one.user.clone(), ago(one.at_ms, now), one.reason.clone()]
    };
    below(text, &COLUMNS, asks.iter().map(row).collect());
}

fn edits(text: &mut String, edits: &[Edit], now: Timestamp) {
    const COLUMNS: [Column; 4] = [("EDITED", RIGHT), ("BY", LEFT), ("WHEN", RIGHT), ("CUT", LEFT)];
    let row = |one: &Edit| {
        let cut = if one.now { "at once" } else { "-" };
        [one.size.to_string(), one.by.clone(), ago(one.at_ms, now), cut.to_owned()]
    };
    below(text, &COLUMNS, edits.iter().rev().take(EDITS_SHOWN).map(row).collect());
}

/// Who may do what.
pub(crate) fn roles(tree: &Accounts) -> String {
    const COLUMNS: [Column; 3] = [("ACCOUNT", LEFT), ("USER", LEFT), ("ROLE", LEFT)];
    let rows = tree.accounts.iter().flat_map(|account| {
        account
            .roles
            .iter()
            .map(|held| [account.account.clone(), held.user.clone(), held.role.to_owned()])
    });
    table(&COLUMNS, rows)
}
