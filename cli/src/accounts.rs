//! `accounts`, and the reading of accounts for `budget` and `role`.

use tidegate_proto::v1;

use crate::args::{AccountsArgs, AnyAccount};
use crate::connect::Api;
use crate::exit::Failure;
use crate::jobs::broken;
use crate::show::out::{json, say};
use crate::show::table;
use crate::view::account::Accounts;
use crate::view::users::Users;

/// Lists accounts with their figures.
///
/// # Errors
/// If there is no such account, or the coordinator does not answer.
pub(crate) async fn list(api: &Api, args: &AccountsArgs, as_json: bool) -> Result<(), Failure> {
    let tree = read(api, args.below.as_ref()).await?;
    if as_json { json(&tree) } else { say(&table::accounts(&tree, args.users)) }
}

/// Accounts as they are now: this one and those below it, or all.
///
/// # Errors
/// As [`list`].
pub(crate) async fn read(api: &Api, below: Option<&AnyAccount>) -> Result<Accounts, Failure> {
    let below = below.map(AnyAccount::on_wire).unwrap_or_default();
    let mut all = v1::ListAccountsReply::default();
    loop {
        let after = all.accounts.last().map(|last| last.account.clone()).unwrap_or_default();
        let request = v1::ListAccountsRequest { below: below.clone(), after, limit: 0 };
        let page = api.read(async |mut client| client.list_accounts(request.clone()).await).await?;
        let (more, none) = (page.more, page.accounts.is_empty());
        all.accounts.extend(page.accounts);
        all.at_ms = page.at_ms;
        // A page without an account would be asked for again for ever.
        if !more || none {
            return Accounts::read(all, &mut Users::default()).map_err(|error| broken(&error));
        }
    }
}
