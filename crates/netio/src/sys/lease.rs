//! Whether a file is open for writing, by a lease (fcntl(2), `F_SETLEASE`): the kernel gives one for reading only where no program
//! writes.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::fstatfs;

/// Selects the signal that reports a program that wants to write (`F_SETSIG`, the same on all of Linux).
const SET_SIGNAL: libc::c_int = 10;

/// File systems of other machines and of programs (statfs(2)): NFS, CIFS, SMB 1 and 2, FUSE, 9P, Ceph, AFS and GFS2. They refuse a lease because they
/// have no right to the file themselves at the moment, whether it is written or not.
const REMOTE: [u32; 9] = [
    0x6969,
    0xff53_4d42,
    0x517b,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x0116_1970,
];

/// Returns whether a program of this machine has the file open for writing.
///
/// # Errors
/// If that cannot be known: the file is another user's, or its file system knows no leases.
pub fn has_writer(file: impl AsFd) -> io::Result<bool> {
    // The number is a sign-extended one on some processors.
    if REMOTE.contains(&(fstatfs(&file)?.f_type as u32)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let file = file.as_fd().as_raw_fd();
    // A program that opens the file for writing meanwhile waits until the lease is given back, and this process gets a signal: one
    // that does nothing by default, instead of SIGIO, which would end it.
    // SAFETY: a call on a descriptor that is open, with numbers as arguments.
    let call =
        |command: libc::c_int, argument: libc::c_int| match unsafe { libc::fcntl(file, command, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
    call(SET_SIGNAL, libc::SIGURG)?;
    match call(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => call(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn file_has_a_writer_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("film.ts");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert!(has_writer(&reader).unwrap());
        drop(writer);
        assert!(!has_writer(&reader).unwrap());
        // The lease is given back: this would wait for it otherwise.
        let _writer = File::options().write(true).open(&path).unwrap();
        assert!(has_writer(&reader).unwrap());
    }
}
