//! The name of an interface's driver, which is available only through an ioctl.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Updater, ioctl};

/// linux/sockios.h.
const SIOCETHTOOL: Opcode = 0x8946;
/// linux/ethtool.h.
const ETHTOOL_GDRVINFO: u32 = 3;
/// Longest name of a network device, the ending zero not counted (IFNAMSIZ - 1).
const MAX_NAME_BYTES: usize = 15;

/// `struct ethtool_drvinfo`: all but the driver's name is of no interest.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ifreq` (linux/if.h) as `SIOCETHTOOL` uses it: a name and a pointer, the rest unused.
#[repr(C)]
struct InterfaceRequest<'a> {
    name: [u8; MAX_NAME_BYTES + 1],
    info: *mut c_void,
    unused: [u8; 16],
    lives: PhantomData<&'a mut DriverInfo>,
}

const _: () = {
    assert!(size_of::<DriverInfo>() == 196);
    assert!(size_of::<InterfaceRequest<'_>>() == size_of::<libc::ifreq>());
    assert!(std::mem::offset_of!(InterfaceRequest<'_>, info) == std::mem::offset_of!(libc::ifreq, ifr_ifru));
};

/// The driver of interface `name` in the network namespace of a socket.
pub(crate) fn driver(socket: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    let mut request = InterfaceRequest {
        name: [0; MAX_NAME_BYTES + 1],
        info: (&raw mut info).cast(),
        unused: [0; 16],
        lives: PhantomData,
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: SIOCETHTOOL reads and writes one ifreq, whose layout `request` has (asserted above), and with this command
    // at most one ethtool_drvinfo (196 bytes, asserted) where it points to: `info`, which lives until the call returns
    // and is not touched meanwhile. The name ends in a zero byte. Descriptors other than sockets answer ENOTTY.
    unsafe { ioctl(socket, Updater::<SIOCETHTOOL, _>::new(&mut request)) }?;
    let end = info.driver.iter().position(|&byte| byte == 0).unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn drivers_have_names_and_what_is_not_there_has_none() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let errno = |name: &str| driver(socket.as_fd(), name).unwrap_err().raw_os_error();
        for name in ["nosuch0", "", "a-name-of-sixteen"] {
            assert_eq!(errno(name), Some(libc::ENODEV), "{name}");
        }
        // Loopback has no driver, and the kernel reports this.
        assert_eq!(errno("lo"), Some(libc::EOPNOTSUPP));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(driver(file.as_fd(), "lo").unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        // Any other interface that has a driver reports its name in letters.
        for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            if let Ok(name) = driver(socket.as_fd(), &entry.file_name().to_string_lossy()) {
                assert!(
                    !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic() || c == ' '),
                    "{name:?}"
                );
            }
        }
    }
}
