//! What to paste into a player.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// `rtsp://host:port/`, with brackets around an IPv6 address and without the default port.
pub(crate) fn base_url(host: &str, port: u16) -> String {
    let host = in_url(host);
    if port == 554 { format!("rtsp://{host}/") } else { format!("rtsp://{host}:{port}/") }
}

/// A host as it stands in URLs: an IPv6 address in brackets (RFC 3986 section 3.2.2).
pub(crate) fn in_url(host: &str) -> String {
    match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        _ => host.to_owned(),
    }
}

/// The address under which others reach this machine: the one that it listens on, or the one that it would use to
/// reach the outside. Nothing is sent.
pub(crate) fn own_host(listen: SocketAddr) -> String {
    if !listen.ip().is_unspecified() {
        return listen.ip().to_string();
    }
    // Connecting a UDP socket only chooses a route and with it a source address (documentation address, RFC 5737).
    let outside = || {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
        socket.connect(("192.0.2.1", 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    };
    outside().map_or_else(|| "127.0.0.1".to_owned(), |ip| ip.to_string())
}

/// How to open one title, and so any of them. If only users may watch, the lines have a place for
/// the user's name and password, because players would be refused without them.
pub(crate) fn block(base: &str, name: &str, needs_user: bool) -> String {
    let (who, base) = match needs_user {
        true => (
            " as a user with a grant (replace USER and PASSWORD)",
            base.replacen("rtsp://", "rtsp://USER:PASSWORD@", 1),
        ),
        false => ("", base.to_owned()),
    };
    let url = format!("{base}{name}");
    format!(
        "Open any of them{who}, for example {name}:\n  ffplay -rtsp_transport udp {url}\n  ffplay -rtsp_transport tcp {url}\n  \
         vlc {url}\n  gst-launch-1.0 playbin uri={url}\nAll addresses: millrace ls --urls {base}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_what_players_take() {
        assert_eq!(base_url("tv.example", 8554), "rtsp://tv.example:8554/");
        assert_eq!(base_url("10.0.0.5", 554), "rtsp://10.0.0.5/");
        assert_eq!(base_url("::1", 8554), "rtsp://[::1]:8554/");
        let block = block("rtsp://h/", "film", false);
        assert!(block.contains("vlc rtsp://h/film") && !block.contains("USER"), "{block}");
    }

    #[test]
    fn block_for_users_has_name_and_password_in_each_address() {
        let block = block("rtsp://h/", "film", true);
        let lines: Vec<&str> = block.lines().collect();
        assert!(lines[0].contains("user with a grant"), "{block}");
        assert_eq!(lines.len(), 6, "{block}");
        assert!(lines[1..].iter().all(|line| line.contains("rtsp://USER:PASSWORD@h/")), "{block}");
    }

    #[test]
    fn own_host_of_bound_address_is_that_address() {
        assert_eq!(own_host("10.0.0.5:1".parse().unwrap()), "10.0.0.5");
        assert!(own_host("0.0.0.0:1".parse().unwrap()).parse::<IpAddr>().is_ok());
    }
}
