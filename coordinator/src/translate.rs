//! Values of the core as messages that the API and the journal share, and back.

mod gate;
mod policy;

use scheduler_core::{Amount, Cut, Role, Size, Standing};
use tidegate_proto::{WireError, amount, amount_bytes, required, v1};

pub(crate) use gate::{gate_rule, gate_rule_message};
pub(crate) use policy::{policy, policy_message};

pub(crate) fn size_message(size: Size) -> v1::Size {
    use v1::size::Size as Kind;
    let kind = match size {
        Size::Share(share) => Kind::ShareMillionths(share),
        Size::Fixed(amount) => Kind::Fixed(amount_bytes(amount.0)),
    };
    v1::Size { size: Some(kind) }
}

pub(crate) fn size(message: Option<v1::Size>) -> Result<Size, WireError> {
    use v1::size::Size as Kind;
    let kind = message.and_then(|message| message.size);
    Ok(match required(kind, "Size.size")? {
        Kind::ShareMillionths(share) => Size::Share(share),
        Kind::Fixed(bytes) => Size::Fixed(money(&bytes, "Size.fixed")?),
    })
}

pub(crate) fn money(bytes: &[u8], field: &'static str) -> Result<Amount, WireError> {
    amount(bytes, field).map(Amount)
}

pub(crate) fn cut(now: bool) -> Cut {
    if now { Cut::Now } else { Cut::Gradual }
}

pub(crate) fn is_now(cut: Cut) -> bool {
    match cut {
        Cut::Now => true,
        Cut::Gradual => false,
    }
}

pub(crate) fn role_message(role: Option<Role>) -> v1::Role {
    match role {
        None => v1::Role::Unspecified,
        Some(Role::Reader) => v1::Role::Reader,
        Some(Role::Member) => v1::Role::Member,
        Some(Role::Manager) => v1::Role::Manager,
    }
}

pub(crate) fn role(value: i32) -> Result<Option<Role>, WireError> {
    match v1::Role::try_from(value) {
        Ok(v1::Role::Unspecified) => Ok(None),
        Ok(v1::Role::Reader) => Ok(Some(Role::Reader)),
        Ok(v1::Role::Member) => Ok(Some(Role::Member)),
        Ok(v1::Role::Manager) => Ok(Some(Role::Manager)),
        Err(_) => Err(WireError::UnknownEnum { field: "Role", value }),
    }
}

pub(crate) fn standing_message(standing: Standing) -> v1::Standing {
    match standing {
        Standing::Protected => v1::Standing::Protected,
        Standing::Funded => v1::Standing::Funded,
        Standing::Free => v1::Standing::Free,
    }
}

pub(crate) fn standing(value: i32) -> Result<Standing, WireError> {
    match v1::Standing::try_from(value) {
        Ok(v1::Standing::Protected) => Ok(Standing::Protected),
        Ok(v1::Standing::Funded) => Ok(Standing::Funded),
        Ok(v1::Standing::Free) => Ok(Standing::Free),
        Ok(v1::Standing::Unspecified) => Err(WireError::Missing { field: "Standing" }),
        Err(_) => Err(WireError::UnknownEnum { field: "Standing", value }),
    }
}
