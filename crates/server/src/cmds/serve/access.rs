//! Two lines at the start: which hosts can connect, and which clients may watch and change things.

use std::net::SocketAddr;

use millrace_rights::{Policy, Watching};

/// A protocol, and where its listener is.
pub(crate) type Listening = (&'static str, SocketAddr);

/// Prints both.
pub(super) fn print(listeners: &[Listening], offload: Option<&str>, policy: &Policy) {
    println!("{}", reach(listeners, offload));
    println!("{}", rights(policy));
}

/// The hosts that can connect. Firewalls are not taken into account.
pub(crate) fn reach(listeners: &[Listening], offload: Option<&str>) -> String {
    let (here, out): (Vec<_>, Vec<_>) = listeners.iter().partition(|(_, address)| address.ip().is_loopback());
    let list = |listeners: Vec<&Listening>| {
        let shown = listeners.into_iter().map(|(protocol, address)| format!("{protocol} on {address}"));
        shown.collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    if !out.is_empty() {
        parts.push(format!("from any host that can connect: {}", list(out)));
    }
    if let Some(host) = offload {
        parts.push(format!("through the offload engine: {host}"));
    }
    if !here.is_empty() {
        parts.push(format!("from this machine only: {}", list(here)));
    }
    format!("reachable {}", parts.join("; "))
}

/// The clients that may watch and change things, and how to restrict watching.
pub(crate) fn rights(policy: &Policy) -> String {
    let watching = match policy.watching {
        Watching::Open => "anyone may watch",
        Watching::ByRights => "users with a grant and holders of signed links may watch",
    };
    let changing = match (policy.trusts_here(), policy.has_managers) {
        (true, true) => "programs on this machine and users with --manage",
        (true, false) => "only programs on this machine",
        (false, true) => "only users with --manage",
        (false, false) => "no client",
    };
    let remedy = match policy.watching {
        Watching::Open => {
            "; to require a password: millrace user add NAME --grant '*', then --watching users"
        }
        Watching::ByRights => "",
    };
    format!("access: {watching}, {changing} may change titles{remedy}")
}

#[cfg(test)]
mod tests {
    use millrace_rights::TrustHere;

    use super::*;

    #[test]
    fn reach_separates_open_from_local_listeners() {
        let [open, local] = ["0.0.0.0:8554", "127.0.0.1:8080"].map(|address| address.parse().unwrap());
        assert_eq!(
            reach(&[("RTSP", open), ("HTTP", local)], None),
            "reachable from any host that can connect: RTSP on 0.0.0.0:8554; from this machine only: HTTP on 127.0.0.1:8080"
        );
        assert_eq!(
            reach(&[("RTSP", local)], Some("10.9.0.1")),
            "reachable through the offload engine: 10.9.0.1; from this machine only: RTSP on 127.0.0.1:8080"
        );
    }

    #[test]
    fn rights_follow_policy() {
        let open = Policy::default();
        assert!(
            rights(&open).starts_with(
                "access: anyone may watch, only programs on this machine may change titles; to "
            )
        );
        let users = Policy { watching: Watching::ByRights, has_managers: true, ..open };
        assert_eq!(
            rights(&users),
            "access: users with a grant and holders of signed links may watch, only users with --manage may change titles"
        );
        let always = Policy { trust_here: TrustHere::Always, ..users };
        assert!(
            rights(&always).contains("programs on this machine and users with --manage may change titles")
        );
        assert!(
            rights(&Policy { trust_here: TrustHere::Never, ..open })
                .contains(", no client may change titles")
        );
    }
}
