//! The users of a server. Names and tokens are the same in each simulation; grants and quotas are
//! drawn.

use std::path::Path;
use std::sync::Arc;

use millrace_rights::{Cost, Limits, NewUser, RightsFile, RightsSnapshot};

use crate::scenario::{SignIn, UserPlan};
use crate::titles::StoredTitle;

/// Users in the file: no scenario has more.
pub const MOST_USERS: usize = 3;
/// Passwords are not used here, so that their hashes may be cheap.
const CHEAP: Cost = Cost { kib: 8, passes: 1 };

/// The file of users as it was written.
pub struct StoredUsers {
    known: RightsSnapshot,
    names: Vec<Arc<str>>,
    tokens: Vec<String>,
}

impl StoredUsers {
    /// Writes the file.
    pub fn write(dir: &Path) -> Self {
        let written = "a directory of its own takes a file of users";
        let mut file = RightsFile::open_or_create(&dir.join("rights.sqlite")).expect(written);
        let (mut names, mut tokens) = (Vec::new(), Vec::new());
        for number in 0..MOST_USERS {
            let name = format!("user-{number}");
            let password = "not used here";
            let user = NewUser { name: &name, password, digest: false, manages: false, cost: CHEAP };
            file.add_user(&user, 0).expect(written);
            tokens.push(file.add_token(&name, 0, None).expect(written).1);
            names.push(name.into());
        }
        Self { known: file.read().expect(written), names, tokens }
    }

    /// The users of a scenario, with their grants and quotas.
    pub fn known(&self, plans: &[UserPlan], titles: &[StoredTitle]) -> RightsSnapshot {
        let mut known = self.known.clone();
        known.users.retain(|name, _| self.names[..plans.len()].contains(name));
        for (name, plan) in self.names.iter().zip(plans) {
            let Some(user) = known.users.get_mut(name) else { continue };
            user.limits = Limits { streams: plan.streams, bits_per_s: plan.bits_per_s };
            let only = plan.only_title.map(|title| titles[title].name.clone());
            user.watches = vec![only.unwrap_or_else(|| "*".to_owned())];
        }
        known
    }

    /// The credentials of a viewer, and the answers that it must get.
    pub fn access(&self, plans: &[UserPlan], sign_in: SignIn, title: usize) -> ViewerAccess {
        let token = match sign_in {
            SignIn::Not => None,
            SignIn::Wrong => Some(format!("mr_{}", "A".repeat(43))),
            SignIn::As(user) => self.tokens.get(user).cloned(),
        };
        let denial = |title: Option<usize>| match sign_in {
            _ if plans.is_empty() => None,
            SignIn::Not | SignIn::Wrong => Some(401),
            SignIn::As(user) => {
                let only = plans[user].only_title;
                (only.is_some() && only != title).then_some(403)
            }
        };
        ViewerAccess {
            authorization: token.filter(|_| !plans.is_empty()).map(|token| format!("Bearer {token}")),
            denial: denial(Some(title)),
            denial_elsewhere: denial(None),
        }
    }
}

/// The credentials of a viewer, and the answers that it must get.
#[derive(Clone, Debug, Default)]
pub struct ViewerAccess {
    /// Value of `Authorization`.
    pub authorization: Option<String>,
    /// The status of the answer if it may not watch its title.
    pub denial: Option<u16>,
    /// The same for a title that does not exist.
    pub denial_elsewhere: Option<u16>,
}

impl ViewerAccess {
    /// Signs requests whose lines end with `line_end`.
    pub fn sign(&self, requests: &str, line_end: &str) -> String {
        match &self.authorization {
            Some(value) => requests.replace(line_end, &format!("{line_end}Authorization: {value}\r\n")),
            None => requests.to_owned(),
        }
    }
}
