//! Requests as events: what people ask of accounts and jobs.

use scheduler_core::{AccountRequest, JobRequest};
use tidegate_model::{AccountPath, UserId};
use tidegate_proto::{WireError, optional, parsed, required, v1};

use crate::translate::{cut, money, role, size};

pub(super) fn account(message: v1::ChangeAccountRequest) -> Result<AccountRequest, WireError> {
    use v1::change_account_request::Change;
    Ok(match required(message.change, "ChangeAccountRequest.change")? {
        Change::Set(m) => {
            let (account, size, cut) = (path(&m.account)?, size(m.size)?, cut(m.now));
            AccountRequest::Set { account, size, cut }
        }
        Change::Transfer(m) => AccountRequest::Transfer {
            from: parsed(&m.from, "Transfer.from")?,
            to: parsed(&m.to, "Transfer.to")?,
            amount: money(&m.amount, "Transfer.amount")?,
            permanent: m.permanent,
            key: optional(&m.key, "Transfer.key")?,
        },
        Change::Ask(m) => {
            let (account, size, reason) = (path(&m.account)?, size(m.size)?, m.reason);
            AccountRequest::Ask { account, size, reason }
        }
        Change::Answer(m) => {
            let (account, asked_by) = (path(&m.account)?, UserId(m.asked_by_uid));
            let size = m.size.map(|given| size(Some(given))).transpose()?;
            AccountRequest::Answer { account, asked_by, grant: m.grant, size }
        }
        Change::Delete(m) => AccountRequest::Delete { account: path(&m.account)? },
        Change::SetRole(m) => AccountRequest::SetRole {
            account: optional(&m.account, "SetRole.account")?,
            user: UserId(m.uid),
            role: role(m.role)?,
        },
    })
}

fn path(text: &str) -> Result<AccountPath, WireError> {
    parsed(text, "account")
}

pub(super) fn job(change: i32) -> Result<JobRequest, WireError> {
    let field = "ChangeJobRequest.change";
    match v1::JobChange::try_from(change) {
        Ok(v1::JobChange::Park) => Ok(JobRequest::Park),
        Ok(v1::JobChange::Release) => Ok(JobRequest::Release),
        Ok(v1::JobChange::AllowElder) => Ok(JobRequest::AllowElder),
        Ok(v1::JobChange::DropReservation) => Ok(JobRequest::DropReservation),
        Ok(v1::JobChange::Unspecified) => Err(WireError::Missing { field }),
        Err(_) => Err(WireError::UnknownEnum { field, value: change }),
    }
}
