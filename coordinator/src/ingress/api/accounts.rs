//! Accounts: listed page by page, and changed.

use scheduler_core::{AccountRequest, Event, Refusal};
use tidegate_model::UserId;
use tidegate_proto::{optional, v1};
use tonic::Status;

use super::{Api, MAX_PAGE_BYTES};
use crate::engine::Answer;
use crate::ingress::{messages, requests, status};

/// Most accounts in one page.
const MAX_PAGE: usize = 1000;

impl Api {
    pub(super) async fn accounts_page(
        &self,
        ask: &v1::ListAccountsRequest,
    ) -> Result<v1::ListAccountsReply, Status> {
        let below = optional(&ask.below, "ListAccountsRequest.below");
        let below = below.map_err(|error| status::malformed(&error))?;
        let mut reply = messages::accounts::accounts(&*self.view().await?, below.as_ref());
        let missing = |given: &str| {
            let why = "not known here; `tidegate accounts` lists them".to_owned();
            status::refused(&Refusal::NoSuchAccount { given: given.to_owned(), why })
        };
        if let (Some(path), true) = (&below, reply.accounts.is_empty()) {
            return Err(missing(&path.to_string()));
        }
        if !ask.after.is_empty() {
            // Of a tree that lost it since, where the page would begin cannot be said.
            let place = reply.accounts.iter().position(|one| one.account == ask.after);
            let place = place.ok_or_else(|| missing(&ask.after))?;
            reply.accounts.drain(..=place);
        }
        let asked = usize::try_from(ask.limit).unwrap_or(MAX_PAGE);
        let limit = if asked == 0 { MAX_PAGE } else { asked.min(MAX_PAGE) };
        let (all, mut bytes) = (reply.accounts.len(), 0_usize);
        let mut count = 0_usize;
        for account in reply.accounts.iter().take(limit) {
            bytes = bytes.saturating_add(prost::Message::encoded_len(account));
            // One is always given, however large: else nobody would come past it.
            if count > 0 && bytes > MAX_PAGE_BYTES {
                break;
            }
            count = count.saturating_add(1);
        }
        reply.accounts.truncate(count);
        reply.more = count < all;
        Ok(reply)
    }

    pub(super) async fn account_changed(
        &self,
        by: UserId,
        ask: v1::ChangeAccountRequest,
    ) -> Result<v1::ChangeReply, Status> {
        let request = requests::account(ask).map_err(|error| status::malformed(&error))?;
        let replaced = match &request {
            AccountRequest::Ask { account, .. } => {
                messages::accounts::asked(&*self.view().await?, account, by)
            }
            AccountRequest::Set { .. }
            | AccountRequest::Transfer { .. }
            | AccountRequest::Answer { .. }
            | AccountRequest::Delete { .. }
            | AccountRequest::SetRole { .. } => None,
        };
        let answer = status::ask(&self.engine, Event::AccountRequested { by, request }).await?;
        let changed = answer == Answer::Changed;
        // What is asked again takes the place of nothing.
        Ok(v1::ChangeReply { changed, replaced: replaced.filter(|_| changed) })
    }
}
