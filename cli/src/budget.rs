//! `budget` and `role`: what people ask and decide about accounts.

use serde::Serialize;
use tidegate_proto::v1;
use tidegate_proto::v1::change_account_request::{
    Answer as AnswerAsk, Ask, Change, Delete, SetBudget, SetRole, Transfer,
};

use crate::accounts::read;
use crate::amount::Size;
use crate::args::{AnswerArgs, AnyAccount, BudgetCommand, RoleCommand};
use crate::connect::{Api, Client};
use crate::exit::{Exit, Failure};
use crate::jobs::broken;
use crate::retry::{Answer, Patience};
use crate::show::out::{json, say};
use crate::show::table;
use crate::show::time::{self, ago};
use crate::submit::new_key;
use crate::view::account as view;
use crate::view::users::{Users, uid};

/// Shows or changes a budget.
///
/// # Errors
/// If there is no such account or user, it is not allowed or cannot hold, or the coordinator does
/// not answer.
pub(crate) async fn budget(
    api: &Api,
    command: BudgetCommand,
    as_json: bool,
) -> Result<(), Failure> {
    match command {
        BudgetCommand::Show { account } => show(api, &account, as_json).await,
        BudgetCommand::Set { account, size, now } => {
            let told = format!("{account} is given {size}");
            let (account, size) = (account.to_string(), Some(size.into()));
            change(api, Change::Set(SetBudget { account, size, now }), &told, as_json).await
        }
        BudgetCommand::Transfer { from, to, amount, permanent, key } => {
            let how = if permanent { "for good" } else { "for one window, 7d" };
            let told = format!("{amount} GPU-h of {from} go to {to}, {how}");
            let (from, to) = (from.to_string(), to.to_string());
            let key = key.unwrap_or_else(new_key).to_string();
            let transfer = Transfer { from, to, amount: amount.on_wire(), permanent, key };
            once(api, transfer, &told, as_json).await
        }
        BudgetCommand::Request { account, size, reason } => {
            let told = format!("{size} are asked for {account}; a manager above it answers");
            let (account, size) = (account.to_string(), Some(size.into()));
            request(api, Ask { account, size, reason }, told, as_json).await
        }
        BudgetCommand::Approve(args) => answer(api, args, true, as_json).await,
        BudgetCommand::Decline(args) => answer(api, args, false, as_json).await,
        BudgetCommand::Delete { account } => {
            let told = format!("{account} is deleted; what it spent stays with its parent");
            let delete = Delete { account: account.to_string() };
            change(api, Change::Delete(delete), &told, as_json).await
        }
    }
}

async fn show(api: &Api, account: &AnyAccount, as_json: bool) -> Result<(), Failure> {
    let tree = read(api, Some(account)).await?;
    let Some(shown) = tree.accounts.first() else {
        return Err(Failure::new(Exit::Broken, format!("the coordinator named no {account}")));
    };
    if as_json { json(shown) } else { say(&table::budget(shown, tree.at_ms)) }
}

/// Asks for another budget. Of one user there is one request for an account: the newest.
async fn request(api: &Api, ask: Ask, told: String, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Requested {
        changed: bool,
        /// The request that this one took the place of.
        replaced: Option<view::Ask>,
    }
    let Answered { value: reply, changed } = ask_for(api, Change::Ask(ask)).await?;
    let read = |ask| view::Ask::read(ask, &mut Users::default());
    let replaced = reply.replaced.map(read).transpose().map_err(|error| broken(&error))?;
    if as_json {
        return json(&Requested { changed, replaced });
    }
    let told = format!("{told}{}", was_so(changed));
    let instead = replaced.map(|old| {
        let when = ago(old.at_ms, time::now());
        format!("; it replaces your request for {} of {when}", old.size)
    });
    say(&format!("{told}{}", instead.unwrap_or_default()))
}

/// Answers what a user asks for now, and nothing else: it may change while a manager reads it.
async fn answer(api: &Api, args: AnswerArgs, grant: bool, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Told {
        changed: bool,
        size: Size,
    }
    let AnswerArgs { account, user, size } = args;
    let asked_by_uid = uid(&user)?;
    let tree = read(api, Some(&AnyAccount::Path(account.clone()))).await?;
    let asks = tree.accounts.first().map(|one| one.requests.as_slice()).unwrap_or_default();
    let Some(ask) = asks.iter().find(|ask| ask.uid == asked_by_uid) else {
        let words = format!("{user} has asked for nothing in {account}");
        return Err(Failure::refused(words));
    };
    if size.is_some_and(|size| size != ask.size) {
        let (now, wanted) = (ask.size, size.map(|size| size.to_string()).unwrap_or_default());
        let words = format!("{user} asks for {now} in {account}, and not for {wanted}");
        return Err(Failure::refused(words));
    }
    let size = ask.size;
    let (account_path, seen) = (account.to_string(), Some(size.into()));
    let answer = AnswerAsk { account: account_path, asked_by_uid, grant, size: seen };
    let changed = ask_for(api, Change::Answer(answer)).await?.changed;
    if as_json {
        return json(&Told { changed, size });
    }
    let told = if grant {
        format!("{account} is given {size}, as {user} asked")
    } else {
        format!("{size}, which {user} asked for {account}, is declined")
    };
    say(&format!("{told}{}", was_so(changed)))
}

/// Shows or changes roles.
///
/// # Errors
/// As [`budget`].
pub(crate) async fn role(api: &Api, command: RoleCommand, as_json: bool) -> Result<(), Failure> {
    match command {
        RoleCommand::Set { account, user, role } => {
            let told = match role.word() {
                "none" => format!("{user} has no role of its own in {account}"),
                word => format!("{user} is {word} of {account}"),
            };
            let (uid, role) = (uid(&user)?, v1::Role::from(role).into());
            let set = SetRole { account: account.on_wire(), uid, role };
            change(api, Change::SetRole(set), &told, as_json).await
        }
        RoleCommand::List { below } => list(api, below.as_ref(), as_json).await,
    }
}

async fn list(api: &Api, below: Option<&AnyAccount>, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Roles {
        roles: Vec<RoleOf>,
    }
    #[derive(Serialize)]
    struct RoleOf {
        account: String,
        user: String,
        uid: u32,
        role: &'static str,
    }
    let tree = read(api, below).await?;
    if !as_json {
        return say(&table::roles(&tree));
    }
    let mut roles = Vec::new();
    for account in tree.accounts {
        roles.extend(account.roles.into_iter().map(|held| RoleOf {
            account: account.account.clone(),
            user: held.user,
            uid: held.uid,
            role: held.role,
        }));
    }
    json(&Roles { roles })
}

/// Each of these names an end state: it may be asked twice.
async fn change(api: &Api, change: Change, told: &str, as_json: bool) -> Result<(), Failure> {
    tell(ask_for(api, change).await?.changed, told, as_json)
}

/// A reply, and whether this command changed something.
struct Answered {
    value: v1::ChangeReply,
    changed: bool,
}

async fn ask_for(api: &Api, change: Change) -> Result<Answered, Failure> {
    let request = v1::ChangeAccountRequest { change: Some(change) };
    let ask = async |mut client: Client| client.change_account(request.clone()).await;
    let Answer { value, tries } = api.ask(&Patience::of_reads(), ask).await?;
    // That a repeated one was made is what was asked for: its first answer was lost.
    Ok(Answered { changed: value.changed || tries > 1, value })
}

/// A transfer carries its key, as a submit does: it is asked until there is an answer.
async fn once(api: &Api, transfer: Transfer, told: &str, as_json: bool) -> Result<(), Failure> {
    let key = transfer.key.clone();
    let request = v1::ChangeAccountRequest { change: Some(Change::Transfer(transfer)) };
    let ask = async |mut client: Client| client.change_account(request.clone()).await;
    let answer =
        api.ask(&Patience::of_submit(&key), ask).await.map_err(|failure| match &failure {
            Failure::Told { exit: Exit::Unavailable, message } => Failure::new(
                Exit::Unavailable,
                format!("{message}; repeat with --key {key} and no second transfer can come of it"),
            ),
            Failure::Told { .. } | Failure::Command { .. } | Failure::OutputClosed => failure,
        })?;
    // That a repeated one was made is what was asked for.
    tell(answer.value.changed || answer.tries > 1, told, as_json)
}

fn tell(changed: bool, told: &str, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Changed {
        changed: bool,
    }
    if as_json {
        return json(&Changed { changed });
    }
    say(&format!("{told}{}", was_so(changed)))
}

fn was_so(changed: bool) -> &'static str {
    if changed { "" } else { " (it was so already)" }
}
