//! `--user`: a server that root has started gives up its rights before it opens anything but its ports.
//!
//! Users and capabilities belong to threads, and new threads inherit them. So the change is made while the process has a single thread.

use std::fmt;
use std::fs;
use std::io;

use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::ServeArgs;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Capabilities that AF_XDP needs for as long as the server runs: devices are opened again after failures, packets are steered by BPF, neighbours are kept
/// fresh, and memory is locked.
pub(super) const FOR_XDP: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK);

/// The server cannot run as a user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserError {
    /// There is no such name.
    #[error(
        "--user {name}: no such user in /etc/passwd; create it (useradd --system {name}) or choose another"
    )]
    NoUser {
        /// As it was given.
        name: String,
    },
    /// The user has every right.
    #[error("--user {name}: this user has the rights of root; choose another")]
    IsRoot {
        /// As it was given.
        name: String,
    },
    /// Only root may become another user.
    #[error(
        "--user {name}: only root can change to another user, and this is user {own}; start the server as root, or leave --user out"
    )]
    NotRoot {
        /// As it was given.
        name: String,
        /// The number of the user that started the server.
        own: u32,
    },
    /// A file or a system call failed.
    #[error("--user {name}: cannot {action}: {error}; {remedy}")]
    Call {
        /// As it was given.
        name: String,
        /// The action that failed.
        action: &'static str,
        /// Why.
        error: io::Error,
        /// An action that helps.
        remedy: &'static str,
    },
    /// Files of the store are out of reach.
    #[error("--user {name}: {cause}; the store must be this user's: chown -R {name} DIR")]
    Store {
        /// As it was given.
        name: String,
        /// The file, and the reason.
        cause: String,
    },
}

/// A user and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserIdentity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl UserIdentity {
    /// Looks a name up on this machine.
    ///
    /// # Errors
    /// If there is no such user.
    pub(crate) fn of_machine(name: &str) -> Result<Self, UserError> {
        let read = |path| {
            fs::read_to_string(path).map_err(|error| UserError::Call {
                name: name.to_owned(),
                action: "read the users of this machine",
                error,
                remedy: "check its permissions",
            })
        };
        Self::find(name, &read(PASSWD)?, &read(GROUP)?)
            .ok_or_else(|| UserError::NoUser { name: name.to_owned() })
    }

    /// Looks a name up in the text of both files (passwd(5), group(5)).
    fn find(name: &str, passwd: &str, group: &str) -> Option<Self> {
        let fields = |line: &'_ str| line.split(':').map(str::to_owned).collect::<Vec<String>>();
        let entry =
            passwd.lines().map(fields).find(|entry| entry.first().is_some_and(|first| first == name))?;
        let (uid, gid) = (entry.get(2)?.parse().ok()?, entry.get(3)?.parse().ok()?);
        let mut groups = vec![gid];
        for entry in group.lines().map(fields) {
            let is_member =
                entry.get(3).is_some_and(|members| members.split(',').any(|member| member == name));
            let number: Option<u32> = entry.get(2).and_then(|number| number.parse().ok());
            groups.extend(number.filter(|number| is_member && !groups.contains(number)));
        }
        Some(Self { uid, gid, groups })
    }

    /// Whether the change has to be made: not by a server that this user has started itself.
    fn differs_from(&self, name: &str, own: Uid) -> Result<bool, UserError> {
        let name = name.to_owned();
        match self.uid {
            0 => Err(UserError::IsRoot { name }),
            uid if uid == own.as_raw() => Ok(false),
            _ if !own.is_root() => Err(UserError::NotRoot { name, own: own.as_raw() }),
            _ => Ok(true),
        }
    }
}

/// Changes to the user of `--user`, if there is one, and gives up all capabilities but those that the other settings need.
///
/// # Errors
/// If that is no user, or this is not root.
pub(super) fn become_user(args: &ServeArgs) -> Result<(), UserError> {
    let Some(name) = &args.user else { return Ok(()) };
    let failed = |action, remedy| {
        let name = name.clone();
        move |error: io::Error| UserError::Call { name, action, error, remedy }
    };
    let user = UserIdentity::of_machine(name)?;
    if !user.differs_from(name, geteuid())? {
        return Ok(());
    }
    let needs_xdp = !args.egress.xdp_interfaces.is_empty() || args.tcp.is_engine();
    let kept = if needs_xdp { FOR_XDP } else { CapabilitySet::empty() };
    change_to(&user, kept)
        .map_err(failed("change to it", "allow the server to change its user (CAP_SETUID, CAP_SETGID)"))?;
    tracing::info!("runs as {name} from now on, with {}", Kept(kept));
    Ok(())
}

/// The capabilities that are left, in words.
struct Kept(CapabilitySet);

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("no capability"),
            false => f.write_str("CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK for AF_XDP"),
        }
    }
}

fn change_to(user: &UserIdentity, kept: CapabilitySet) -> io::Result<()> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("the process has {threads} threads already")));
    }
    let permitted = capabilities(None)?.permitted;
    let groups: Vec<_> = user.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_keep_capabilities(true)?;
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    // A container may have less than root has elsewhere.
    let kept = kept.intersection(permitted);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    set_keep_capabilities(false)?;
    // No program that it starts gets more than it has itself.
    set_no_new_privs(true)?;
    // The kernel gives the files in /proc/self to root when a process changes its user, and the server reads some of them.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    Ok(())
}

/// Adds the owner that the store should have, if the user of `--user` may not use it.
pub(super) fn explain_denied(user: Option<&str>, error: anyhow::Error) -> anyhow::Error {
    let is_denied = error.chain().any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
    });
    match user.filter(|_| is_denied) {
        Some(name) => UserError::Store { name: name.to_owned(), cause: error.to_string() }.into(),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nfilm:x:980:970::/:/bin/false\nfilms:x:981:971::/:/bin/false\nodd:x:a:1::/:\n";
    const GROUPS: &str =
        "root:x:0:\nvideo:x:44:anna,film\nmedia:x:50:films,film\nfilm:x:970:film\nnone:x:51:\n";

    #[test]
    fn user_is_found_with_its_groups() {
        let film = UserIdentity::find("film", USERS, GROUPS).unwrap();
        assert_eq!(film, UserIdentity { uid: 980, gid: 970, groups: vec![970, 44, 50] });
        let films = UserIdentity::find("films", USERS, GROUPS).unwrap();
        assert_eq!(films.groups, [971, 50]);
        for name in ["fil", "", "x", "odd", "980"] {
            assert_eq!(UserIdentity::find(name, USERS, GROUPS), None, "{name}");
        }
    }

    #[test]
    fn only_root_changes_the_user() {
        let film = UserIdentity::find("film", USERS, GROUPS).unwrap();
        assert!(film.differs_from("film", Uid::ROOT).unwrap());
        assert!(!film.differs_from("film", Uid::from_raw(980)).unwrap());
        let error = film.differs_from("film", Uid::from_raw(1000)).unwrap_err().to_string();
        assert!(error.starts_with("--user film: only root") && error.contains("user 1000"), "{error}");
        let root = UserIdentity::find("root", USERS, GROUPS).unwrap();
        assert!(root.differs_from("root", Uid::ROOT).unwrap_err().to_string().contains("choose another"));
    }

    #[test]
    fn denied_store_names_the_user_it_should_belong_to() {
        let denied = || {
            anyhow::Error::from(io::Error::from(io::ErrorKind::PermissionDenied))
                .context("/srv/store: denied")
        };
        let error = explain_denied(Some("film"), denied()).to_string();
        assert!(error.contains("/srv/store") && error.contains("chown -R film"), "{error}");
        assert_eq!(format!("{:#}", explain_denied(None, denied())), format!("{:#}", denied()));
        let other = || anyhow::Error::from(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(explain_denied(Some("film"), other()).to_string(), other().to_string());
    }
}
