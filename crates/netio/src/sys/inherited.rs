//! Sockets that the service manager opened and passed to this process (sd_listen_fds(3)).
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::limits::MAX_INHERITED_SOCKETS;

/// The first descriptor that is passed (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// A socket that was passed, and its name (`FileDescriptorName=`; empty: it has none).
#[derive(Debug)]
pub struct InheritedSocket {
    /// Its name.
    pub name: String,
    /// The socket.
    pub fd: OwnedFd,
}

/// Takes the sockets that `$LISTEN_PID`, `$LISTEN_FDS` and `$LISTEN_FDNAMES` announce to this process; the second call finds none. To be
/// called before the process opens sockets of its own.
///
/// # Errors
/// If the variables make no sense, or a descriptor is no socket.
pub fn inherited_sockets() -> io::Result<Vec<InheritedSocket>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| std::env::var_os(name);
    let (pid, count, names) =
        (variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES").unwrap_or_default());
    let names = announced(pid.as_deref(), count.as_deref(), &names, std::process::id())?;
    if names.is_empty() || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let numbers = FIRST..;
    let sockets = numbers.zip(names).map(|(number, name)| {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
        let is_socket = link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
        if !is_socket {
            return Err(io::Error::other(format!("descriptor {number} is no socket")));
        }
        // SAFETY: the descriptor is open, since it has an entry in /proc/self/fd. Nothing else owns it: it was open when this
        // program began, as the variables say for this very process, so no call of the program has been given its number; and
        // this function, which is the only one that takes descriptors by their numbers, takes each once (TAKEN).
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // Programs that the server starts must not have it.
        fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        Ok(InheritedSocket { name, fd })
    });
    sockets.collect()
}

/// The names of the sockets that are announced to the process `own`.
fn announced(pid: Option<&OsStr>, count: Option<&OsStr>, names: &OsStr, own: u32) -> io::Result<Vec<String>> {
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<usize>().ok());
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(Vec::new()) };
    // Variables of a parent stay in the environment of its children.
    if number(pid) != usize::try_from(own).ok() {
        return Ok(Vec::new());
    }
    let count = number(count).filter(|&count| count <= MAX_INHERITED_SOCKETS).ok_or_else(|| {
        io::Error::other(format!(
            "LISTEN_FDS is {}, not a number up to {MAX_INHERITED_SOCKETS}",
            count.display()
        ))
    })?;
    let names = names.to_string_lossy().into_owned();
    let mut names: Vec<_> = names.split(':').take(count).map(str::to_owned).collect();
    names.resize(count, String::new());
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn announced_sockets_are_those_of_this_process() {
        let of = |pid: &str, count: &str, names: &str| {
            announced(Some(OsStr::new(pid)), Some(OsStr::new(count)), OsStr::new(names), 7)
                .map_err(|error| error.to_string())
        };
        assert_eq!(of("7", "2", "rtsp:http").unwrap(), ["rtsp", "http"]);
        assert_eq!(of("7", "3", "rtsp").unwrap(), ["rtsp", "", ""]);
        assert_eq!(of("7", "1", "rtsp:http").unwrap(), ["rtsp"]);
        for (pid, count) in [("8", "2"), ("", "2"), ("7", "0")] {
            assert!(of(pid, count, "").unwrap().is_empty(), "{pid} {count}");
        }
        for count in ["-1", "x", "", "65", "99999999999999999999"] {
            assert!(of("7", count, "").unwrap_err().contains("LISTEN_FDS"), "{count}");
        }
        assert!(announced(None, Some(OsStr::new("1")), OsStr::new(""), 7).unwrap().is_empty());
    }

    /// The program of the test below, which has inherited its sockets.
    #[test]
    #[ignore = "is started by inherited_sockets_of_a_program_are_taken_once"]
    fn inheriting_program() {
        for socket in inherited_sockets().unwrap() {
            let address = TcpListener::from(socket.fd.try_clone().unwrap()).local_addr().unwrap();
            let flags = rustix::io::fcntl_getfd(socket.fd.as_fd()).unwrap();
            println!("took {} {address} {}", socket.name, flags.contains(FdFlags::CLOEXEC));
        }
        println!("then {}", inherited_sockets().unwrap().len());
    }

    #[test]
    fn inherited_sockets_of_a_program_are_taken_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let run = |count: &str| {
            let script = "exec 3<&0; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"";
            let child = Command::new("sh")
                .args(["-c", script, "sh"])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "sys::inherited::tests::inheriting_program", "--ignored", "--nocapture"])
                .env("LISTEN_FDS", count)
                .env("LISTEN_FDNAMES", "rtsp")
                .stdin(OwnedFd::from(listener.try_clone().unwrap()))
                .output()
                .unwrap();
            (child.status.success(), String::from_utf8(child.stdout).unwrap())
        };
        let (is_ok, output) = run("1");
        assert!(is_ok && output.contains(&format!("took rtsp {address} true\nthen 0\n")), "{output}");
        // One more than there are.
        assert!(!run("2").0);
    }
}
