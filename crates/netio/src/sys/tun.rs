//! The one call that makes a TUN or TAP device, which no dependency wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `_IOW('T', 202, int)` (linux/if_tun.h).
const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
/// Longest name of a network device, the ending zero not counted (IFNAMSIZ - 1).
const MAX_NAME_BYTES: usize = 15;

/// `struct ifreq` (linux/if.h) as `TUNSETIFF` uses it: a name and flags, the rest unused.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; MAX_NAME_BYTES + 1],
    flags: u16,
    unused: [u8; 22],
}

const _: () = assert!(std::mem::size_of::<InterfaceRequest>() == std::mem::size_of::<libc::ifreq>());
const _: () = assert!(TUNSETIFF == 0x4004_54ca);

/// What a device reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// IP packets: TUN.
    Packets,
    /// Ethernet frames: TAP.
    Frames,
}

/// Makes a device named `name`, without packet information in front of what it carries, of an open `/dev/net/tun`. It lives
/// as long as the descriptor.
pub(crate) fn make(fd: BorrowedFd<'_>, name: &str, carries: Carries) -> io::Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    let mut request = InterfaceRequest { name: [0; MAX_NAME_BYTES + 1], flags: 0, unused: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let kind = match carries {
        Carries::Packets => libc::IFF_TUN,
        Carries::Frames => libc::IFF_TAP,
    };
    request.flags = (kind | libc::IFF_NO_PI) as u16;
    // SAFETY: TUNSETIFF reads and writes one ifreq; `request` has its layout and size (asserted above) and lives on this
    // frame until the call returns; the name ends in a zero byte. Any descriptor may be asked: others answer ENOTTY.
    unsafe { ioctl(fd, Updater::<TUNSETIFF, _>::new(&mut request)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_that_is_no_tun_refuses_and_nothing_is_written() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(
            make(file.as_fd(), "mill-x", Carries::Packets).unwrap_err().raw_os_error(),
            Some(libc::ENOTTY)
        );
        for bad in ["", "a-name-of-sixteen"] {
            assert_eq!(
                make(file.as_fd(), bad, Carries::Frames).unwrap_err().raw_os_error(),
                Some(libc::ENAMETOOLONG)
            );
        }
    }
}
