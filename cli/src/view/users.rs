//! Names of users. The wire carries uids only: a name is this machine's word for one.

use std::collections::BTreeMap;

use nix::unistd::{Uid, User};

use crate::exit::{Exit, Failure};

/// Names already asked for: a directory service is asked once per user, not once per job.
#[derive(Debug, Default)]
pub(crate) struct Users {
    known: BTreeMap<u32, String>,
}

impl Users {
    /// The user's name, or the number where this machine has no name for it.
    pub(crate) fn name(&mut self, uid: u32) -> String {
        self.known.entry(uid).or_insert_with(|| looked_up(uid)).clone()
    }

    #[cfg(test)]
    pub(crate) fn knowing(known: &[(u32, &str)]) -> Self {
        Self { known: known.iter().map(|(uid, name)| (*uid, (*name).to_owned())).collect() }
    }
}

fn looked_up(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}

/// The uid of a user given by name or number.
///
/// # Errors
/// If no user of this machine has the name.
pub(crate) fn uid(user: &str) -> Result<u32, Failure> {
    match user.parse() {
        // Systems use -1 for "no user".
        Ok(u32::MAX) => return Err(nobody(user)),
        Ok(uid) => return Ok(uid),
        Err(_) if user.parse::<i64>().is_ok() => return Err(nobody(user)),
        Err(_) => {}
    }
    match User::from_name(user) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => {
            let message =
                format!("no user of this machine is named {user:?}; a uid is accepted too");
            Err(Failure::new(Exit::NotFound, message))
        }
        Err(error) => Err(Failure::new(
            Exit::Failed,
            format!("the user {user:?} cannot be looked up: {error}"),
        )),
    }
}

fn nobody(given: &str) -> Failure {
    let most = u32::MAX - 1;
    Failure::refused(format!("{given} is no user's uid: 0 to {most} or a user's name is accepted"))
}

/// The user who runs this command.
pub(crate) fn own_uid() -> u32 {
    Uid::current().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_without_a_name_is_shown_as_its_number() {
        let nobody_is = 3_999_999_999;
        assert_eq!(Users::default().name(nobody_is), "3999999999");
        assert_eq!(Users::knowing(&[(1000, "ana")]).name(1000), "ana");
    }

    #[test]
    fn a_user_may_be_given_by_number_and_an_unknown_name_is_not_found() {
        assert_eq!(uid("1234"), Ok(1234));
        let told = uid("no such user").map_err(|failure| failure.exit());
        assert_eq!(told, Err(Exit::NotFound));
    }
}
