//! The one call that makes a TUN or TAP device, which no dependency wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};

/// `_IOW('T', 202, int)` (linux/if_tun.h).
const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
/// `_IOW('T', 208, unsigned int)`: flags, not a pointer to them.
const TUNSETOFFLOAD: Opcode = opcode::write::<libc::c_uint>(b'T', 208);
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
const _: () = assert!(TUNSETOFFLOAD == 0x4004_54d0);

/// The unit that a device reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// IP packets: TUN.
    Packets,
    /// Ethernet frames: TAP.
    Frames,
}

/// Makes a device named `name`, without packet information before each packet, from an open
/// `/dev/net/tun`; with `takes_trains` a `struct virtio_net_hdr` stands there. It lives as long as
/// the descriptor.
pub(crate) fn make(fd: BorrowedFd<'_>, name: &str, carries: Carries, takes_trains: bool) -> io::Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    let mut request = InterfaceRequest { name: [0; MAX_NAME_BYTES + 1], flags: 0, unused: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let kind = match carries {
        Carries::Packets => libc::IFF_TUN,
        Carries::Frames => libc::IFF_TAP,
    };
    let header = if takes_trains { libc::IFF_VNET_HDR } else { 0 };
    request.flags = (kind | libc::IFF_NO_PI | header) as u16;
    // SAFETY: TUNSETIFF reads and writes one ifreq; `request` has its layout and size (asserted above) and lives on this
    // frame until the call returns; the name ends in a zero byte. Any descriptor may be asked: others answer ENOTTY.
    unsafe { ioctl(fd, Updater::<TUNSETIFF, _>::new(&mut request)) }?;
    Ok(())
}

/// Whether the kernel may hand over segments of TCP that it has not cut (of IPv4 and IPv6), and checksums that it has not made, by a
/// device that takes trains.
pub(crate) fn accept_whole_segments(fd: BorrowedFd<'_>, accept: bool) -> io::Result<()> {
    let flags = if accept { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
    // SAFETY: TUNSETOFFLOAD takes the flags themselves, in place of a pointer: nothing is read or written through them. Any descriptor may be
    // asked: others answer ENOTTY.
    unsafe { ioctl(fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags as usize)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn make_on_non_tun_file_returns_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(
            make(file.as_fd(), "mill-x", Carries::Packets, true).unwrap_err().raw_os_error(),
            Some(libc::ENOTTY)
        );
        for bad in ["", "a-name-of-sixteen"] {
            assert_eq!(
                make(file.as_fd(), bad, Carries::Frames, false).unwrap_err().raw_os_error(),
                Some(libc::ENAMETOOLONG)
            );
        }
    }

    #[test]
    fn accept_whole_segments_on_non_tun_file_returns_enotty() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for accept in [true, false] {
            let error = accept_whole_segments(file.as_fd(), accept).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
