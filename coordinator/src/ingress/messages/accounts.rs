//! Accounts with their figures.

use std::collections::BTreeMap;

use scheduler_core::{
    Account, AccountId, Accounts, Books, BudgetAsk, Edit, Purse, Row, Transfer, WINDOW,
};
use tidegate_model::{AccountPath, JobId, Timestamp, UserId};
use tidegate_proto::{amount_bytes, v1};

use crate::translate::{is_now, role_message, size_message};
use crate::view::View;

/// Accounts in use, parents before their children; below one only, if it is named.
pub(crate) fn accounts(view: &View, below: Option<&AccountPath>) -> v1::ListAccountsReply {
    let (books, now) = (view.core.books(), view.at);
    let tree = &books.accounts;
    let sheet = tree.sheet(now, books.policy.sharing.small_reserve);
    let elders = elders(books);
    let top = match below {
        Some(path) => tree.find(path).map(|account| account.id),
        None => Some(scheduler_core::ROOT),
    };
    let mut due: Vec<AccountId> = top.into_iter().collect();
    let mut accounts = Vec::new();
    while let Some(account) = due.pop().and_then(|id| tree.get(id)) {
        let mut children: Vec<_> = tree.children(account.id).map(|child| child.id).collect();
        children.reverse();
        due.extend(children);
        let mut message = view_of(books, account, sheet.row(account.id), now);
        let elder = elders.get(&account.id);
        message.elder = elder.map(|(_, job)| job.to_string()).unwrap_or_default();
        accounts.push(message);
    }
    v1::ListAccountsReply { accounts, at_ms: now.0, more: false }
}

/// What the user asks for that account and nobody has answered.
pub(crate) fn asked(view: &View, path: &AccountPath, user: UserId) -> Option<v1::AskView> {
    let books = view.core.books();
    let key = (books.accounts.find(path)?.id, user);
    books.asked.get(&key).map(|one| ask((&key, one)))
}

/// Of each account the job that has been its elder longest.
fn elders(books: &Books) -> BTreeMap<AccountId, (Timestamp, JobId)> {
    let mut elders = BTreeMap::new();
    for job in books.jobs.values() {
        if let Some(since) = job.elder {
            let first = elders.entry(job.account).or_insert((since, job.id));
            *first = (*first).min((since, job.id));
        }
    }
    elders
}

fn view_of(books: &Books, account: &Account, row: Row, now: Timestamp) -> v1::AccountView {
    let tree = &books.accounts;
    let stated = match account.parent {
        Some(parent) => account.stated(tree.base(parent, now)),
        None => tree.whole(),
    };
    let left = WINDOW.0.saturating_sub(now.since(account.since).0);
    let allowance = (row.budget - row.limit).part(1, 2).max(books.policy.sharing.small_floor);
    let lasts = |one: &&Transfer| one.until.is_none_or(|until| now < until);
    let roles = account
        .roles
        .iter()
        .map(|(user, role)| v1::RoleView { uid: user.0, role: role_message(Some(*role)).into() });
    let first_user = (account.id, UserId(0));
    let asks = books.asked.range(first_user..=(account.id, UserId(u32::MAX)));
    v1::AccountView {
        account: tree.name(account.id),
        parent: account.parent.map(|parent| tree.name(parent)).unwrap_or_default(),
        leaf: is_leaf(tree, account),
        size: Some(size_message(account.size)),
        since_ms: account.since.0,
        stated: amount_bytes(stated.0),
        cut_left: amount_bytes(account.excess.part(left, WINDOW.0).0),
        budget: amount_bytes(row.budget.0),
        limit: amount_bytes(row.limit.0),
        charged: amount_bytes(account.charged.value(now).0),
        pledged: amount_bytes(account.pledge.value(now).0),
        claim: amount_bytes(row.claim.0),
        free: amount_bytes(account.free.value(now).0),
        scaled: row.scaled,
        small_allowance: amount_bytes(allowance.0),
        users: account.purses.iter().map(|purse| user_use(purse, now)).collect(),
        over_since_ms: account.over_since.map(|at| at.0),
        elder: String::new(),
        transfers: account.transfers.iter().filter(lasts).map(transfer).collect(),
        roles: roles.collect(),
        edits: account.edits.iter().map(edit).collect(),
        asks: asks.map(ask).collect(),
    }
}

/// Jobs run under leaves, and the root is none.
fn is_leaf(tree: &Accounts, account: &Account) -> bool {
    account.parent.is_some() && tree.is_leaf(account.id)
}

fn user_use((user, purse): (&UserId, &Purse), now: Timestamp) -> v1::UserUse {
    v1::UserUse {
        uid: user.0,
        charged: amount_bytes(purse.charged.value(now).0),
        pledged: amount_bytes(purse.pledge.value(now).0),
        claim: amount_bytes(purse.claim(now).0),
        free: amount_bytes(purse.free.value(now).0),
        small_use: amount_bytes(purse.small_use(now).0),
    }
}

fn transfer(one: &Transfer) -> v1::TransferView {
    let amount = amount_bytes(one.amount.0);
    v1::TransferView { amount, until_ms: one.until.map(|until| until.0) }
}

fn edit(one: &Edit) -> v1::EditView {
    let size = Some(size_message(one.size));
    v1::EditView { at_ms: one.at.0, by_uid: one.by.0, size, now: is_now(one.cut) }
}

fn ask(((_, user), ask): (&(AccountId, UserId), &BudgetAsk)) -> v1::AskView {
    v1::AskView {
        uid: user.0,
        size: Some(size_message(ask.size)),
        reason: ask.reason.clone(),
        at_ms: ask.at.0,
    }
}
