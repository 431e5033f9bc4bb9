//! `budget` and `role`: what people ask and decide about accounts.

use serde::Serialize;
use tidegate_proto::v1;
use tidegate_proto::v1::change_account_request::{
    Answer, Ask, Change, Delete, SetBudget, SetRole, Transfer,
};

use crate::accounts::read;
use crate::args::{AnswerArgs, AnyAccount, BudgetCommand, ROOT, RoleCommand};
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::retry::Patience;
use crate::show::out::{json, say};
use crate::show::table;
use crate::view::users::uid;

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
        BudgetCommand::Transfer { from, to, amount, permanent } => {
            let how = if permanent { "for good" } else { "for one window, 7d" };
            let told = format!("{amount} GPU-h of {from} go to {to}, {how}");
            let (from, to) = (from.to_string(), to.to_string());
            let transfer = Transfer { from, to, amount: amount.on_wire(), permanent };
            once(api, transfer, &told, as_json).await
        }
        BudgetCommand::Request { account, size, reason } => {
            let told = format!("{size} are asked for {account}; a manager above it answers");
            let (account, size) = (account.to_string(), Some(size.into()));
            change(api, Change::Ask(Ask { account, size, reason }), &told, as_json).await
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

async fn answer(api: &Api, args: AnswerArgs, grant: bool, as_json: bool) -> Result<(), Failure> {
    let AnswerArgs { account, user } = args;
    let word = if grant { "granted" } else { "declined" };
    let told = format!("what {user} asked for {account} is {word}");
    let answer = Answer { account: account.to_string(), asked_by_uid: uid(&user)?, grant };
    change(api, Change::Answer(answer), &told, as_json).await
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

/// Each of these names an end state, or is refused the second time: it may be asked twice.
async fn change(api: &Api, change: Change, told: &str, as_json: bool) -> Result<(), Failure> {
    let request = v1::ChangeAccountRequest { change: Some(change) };
    let reply = api.read(async |mut client| client.change_account(request.clone()).await).await?;
    tell(reply.changed, told, as_json)
}

/// A transfer that is asked twice is made twice: there is one try, and a person judges the rest.
async fn once(api: &Api, transfer: Transfer, told: &str, as_json: bool) -> Result<(), Failure> {
    let from = if transfer.from.is_empty() { ROOT.to_owned() } else { transfer.from.clone() };
    let request = v1::ChangeAccountRequest { change: Some(Change::Transfer(transfer)) };
    let ask =
        async |mut client: crate::connect::Client| client.change_account(request.clone()).await;
    let answer = api.ask(&Patience::none(), ask).await.map_err(|failure| match &failure {
        Failure::Told { exit: Exit::Unavailable, message } => Failure::new(
            Exit::Unavailable,
            format!("{message}; look at `tidegate budget show {from}` before you ask again"),
        ),
        Failure::Told { .. } | Failure::Command { .. } | Failure::OutputClosed => failure,
    })?;
    tell(answer.value.changed, told, as_json)
}

fn tell(changed: bool, told: &str, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Changed {
        changed: bool,
    }
    if as_json {
        return json(&Changed { changed });
    }
    let was_so = if changed { "" } else { " (it was so already)" };
    say(&format!("{told}{was_so}"))
}
