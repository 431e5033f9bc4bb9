//! The budget tree with what was spent.

use std::collections::BTreeMap;

use scheduler_core::{
    Account, AccountId, BudgetAnswer, BudgetAsk, Edit, Pledge, Purse, Rate, Transfer, Window,
};
use tidegate_model::{Timestamp, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, amount_bytes, optional, required};

use crate::translate;

pub(super) fn message(account: &Account) -> wire::Account {
    let transfer = |one: &Transfer| wire::Transfer {
        from: one.from.0,
        to: one.to.0,
        amount: amount_bytes(one.amount.0),
        until_ms: one.until.map(|until| until.0),
        key: one.key.map(|(_, key)| key.to_string()).unwrap_or_default(),
        by: one.key.map_or(0, |(by, _)| by.0),
    };
    let edit = |one: &Edit| wire::Edit {
        at_ms: one.at.0,
        by: one.by.0,
        size: Some(translate::size_message(one.size)),
        now: translate::is_now(one.cut),
    };
    let roles = account.roles.iter().map(|(user, role)| wire::AccountRole {
        user: user.0,
        role: translate::role_message(Some(*role)).into(),
    });
    wire::Account {
        account: account.id.0,
        parent: account.parent.map(|parent| parent.0),
        label: account.label.clone(),
        size: Some(translate::size_message(account.size)),
        since_ms: account.since.0,
        excess: amount_bytes(account.excess.0),
        transfers: account.transfers.iter().map(transfer).collect(),
        edits: account.edits.iter().map(edit).collect(),
        roles: roles.collect(),
        deleted_ms: account.deleted.map(|at| at.0),
        over_since_ms: account.over_since.map(|at| at.0),
        elder_named_ms: account.elder_named.map(|at| at.0),
        charged: Some(window_message(&account.charged)),
        free: Some(window_message(&account.free)),
        purses: account.purses.iter().map(purse_message).collect(),
    }
}

pub(super) fn account(message: wire::Account) -> Result<Account, WireError> {
    let transfer = |one: wire::Transfer| -> Result<_, WireError> {
        let amount = translate::money(&one.amount, "Transfer.amount")?;
        let key = optional(&one.key, "Transfer.key")?.map(|key| (UserId(one.by), key));
        let (from, to) = (AccountId(one.from), AccountId(one.to));
        Ok(Transfer { from, to, amount, until: one.until_ms.map(Timestamp), key })
    };
    let edit = |one: wire::Edit| -> Result<_, WireError> {
        let (at, by, cut) = (Timestamp(one.at_ms), UserId(one.by), translate::cut(one.now));
        Ok(Edit { at, by, size: translate::size(one.size)?, cut })
    };
    let role = |one: wire::AccountRole| -> Result<_, WireError> {
        let role = translate::role(one.role)?;
        Ok((UserId(one.user), required(role, "AccountRole.role")?))
    };
    Ok(Account {
        id: AccountId(message.account),
        parent: message.parent.map(AccountId),
        label: message.label,
        size: translate::size(message.size)?,
        since: Timestamp(message.since_ms),
        excess: translate::money(&message.excess, "Account.excess")?,
        transfers: message.transfers.into_iter().map(transfer).collect::<Result<_, _>>()?,
        edits: message.edits.into_iter().map(edit).collect::<Result<_, _>>()?,
        roles: message.roles.into_iter().map(role).collect::<Result<_, WireError>>()?,
        deleted: message.deleted_ms.map(Timestamp),
        over_since: message.over_since_ms.map(Timestamp),
        elder_named: message.elder_named_ms.map(Timestamp),
        charged: window(message.charged)?,
        free: window(message.free)?,
        pledge: Pledge::default(),
        purses: message.purses.into_iter().map(purse).collect::<Result<_, _>>()?,
    })
}

fn purse_message((user, purse): (&UserId, &Purse)) -> wire::Purse {
    wire::Purse {
        user: user.0,
        charged: Some(window_message(&purse.charged)),
        free: Some(window_message(&purse.free)),
        small: Some(window_message(&purse.small)),
    }
}

fn purse(message: wire::Purse) -> Result<(UserId, Purse), WireError> {
    let purse = Purse {
        charged: window(message.charged)?,
        free: window(message.free)?,
        small: window(message.small)?,
        ..Purse::default()
    };
    Ok((UserId(message.user), purse))
}

fn window_message(window: &Window) -> wire::Window {
    let (at, amount, tail, changes) = window.parts();
    wire::Window {
        at_ms: at.0,
        amount: amount_bytes(amount.0),
        tail: tail.0,
        changed_ms: changes.keys().map(|at| at.0).collect(),
        changes: changes.values().copied().collect(),
    }
}

fn window(message: Option<wire::Window>) -> Result<Window, WireError> {
    let wire::Window { at_ms, amount, tail, changed_ms, changes } = message.unwrap_or_default();
    if changed_ms.len() != changes.len() {
        let why = format!("{} instants of {} changes", changed_ms.len(), changes.len());
        return Err(WireError::Invalid { field: "Window.changes", why });
    }
    let changes: BTreeMap<_, _> = changed_ms.into_iter().map(Timestamp).zip(changes).collect();
    let amount = translate::money(&amount, "Window.amount")?;
    Ok(Window::restored(Timestamp(at_ms), amount, Rate(tail), changes))
}

pub(super) fn ask_message(
    ((account, user), ask): (&(AccountId, UserId), &BudgetAsk),
) -> wire::BudgetAsk {
    wire::BudgetAsk {
        account: account.0,
        user: user.0,
        size: Some(translate::size_message(ask.size)),
        reason: ask.reason.clone(),
        at_ms: ask.at.0,
    }
}

pub(super) fn ask(message: wire::BudgetAsk) -> Result<((AccountId, UserId), BudgetAsk), WireError> {
    let size = translate::size(message.size)?;
    let ask = BudgetAsk { size, reason: message.reason, at: Timestamp(message.at_ms) };
    Ok(((AccountId(message.account), UserId(message.user)), ask))
}

pub(super) fn answer_message(
    ((account, user), answer): (&(AccountId, UserId), &BudgetAnswer),
) -> wire::BudgetAnswer {
    wire::BudgetAnswer {
        account: account.0,
        user: user.0,
        size: Some(translate::size_message(answer.size)),
        granted: answer.granted,
        by: answer.by.0,
        at_ms: answer.at.0,
    }
}

pub(super) fn answer(
    message: wire::BudgetAnswer,
) -> Result<((AccountId, UserId), BudgetAnswer), WireError> {
    let (size, by) = (translate::size(message.size)?, UserId(message.by));
    let answer = BudgetAnswer { size, granted: message.granted, by, at: Timestamp(message.at_ms) };
    Ok(((AccountId(message.account), UserId(message.user)), answer))
}
