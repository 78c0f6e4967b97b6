//! Programs at interfaces. A link ends when it is dropped, or with its last descriptor when the process dies, however it does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::error::BpfError;
use super::program::{BpfProgram, ProgramType};
use super::sys::{link_create, link_detach};

/// A program at an interface, where its [`ProgramType`] belongs.
///
/// At tcx ingress there may be several; they run in the order in which they came. There is one XDP program at most.
#[derive(Debug)]
pub struct InterfaceLink {
    fd: OwnedFd,
}

impl InterfaceLink {
    /// Attaches `program` to an interface of the calling thread's network namespace, after those that are there.
    ///
    /// # Errors
    /// When there is no such interface, the privileges are missing, or the kernel is too old.
    pub fn attach(program: &BpfProgram, interface: &str) -> Result<Self, BpfError> {
        let index = interface_index(interface)?;
        match link_create(program.as_fd(), index, program.kind().attach_type()) {
            Ok(fd) => Ok(Self { fd }),
            Err(source) => Err(fault(program, interface, source)),
        }
    }
}

impl Drop for InterfaceLink {
    fn drop(&mut self) {
        // A child that another thread has forked and that has not reached its exec holds a copy of the descriptor, so closing
        // ours may end nothing yet. An interface that is gone has detached it already.
        let _ = link_detach(self.fd.as_fd());
    }
}

fn fault(program: &BpfProgram, interface: &str, source: io::Error) -> BpfError {
    let is_tcx = program.kind() == ProgramType::TcxIngress;
    match source.raw_os_error() {
        Some(libc::EINVAL) if is_tcx => BpfError::NoTcx { name: interface.to_owned(), source },
        _ => BpfError::call(format!("attach {} to interface {interface}", program.name()), source),
    }
}

/// The number of an interface in the calling thread's network namespace.
///
/// # Errors
/// When no interface has this name.
pub fn interface_index(name: &str) -> Result<u32, BpfError> {
    let fault =
        |source: rustix::io::Errno| BpfError::NoInterface { name: name.to_owned(), source: source.into() };
    // A socket made here belongs to this thread's namespace, and so do the answers to its queries.
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(fault)?;
    rustix::net::netdevice::name_to_index(&socket, name).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::sys::link_interface;
    use crate::bpf::{Assembler, Reg};

    /// A program that lets everything pass, or `None` with the reason printed.
    fn load(kind: ProgramType) -> Option<BpfProgram> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: BPF needs root");
            return None;
        }
        let mut code = Assembler::default();
        code.mov(Reg::R0, 0);
        code.exit();
        Some(BpfProgram::load("test_link", kind, code).unwrap())
    }

    /// As a child has one between its fork and its exec.
    #[test]
    fn link_drop_detaches_despite_duplicated_descriptor() {
        let Some(program) = load(ProgramType::TcxIngress) else { return };
        let link = match InterfaceLink::attach(&program, "lo") {
            Err(reason @ BpfError::NoTcx { .. }) => return eprintln!("skipped: {reason}"),
            attached => attached.unwrap(),
        };
        let copy = link.fd.try_clone().unwrap();
        assert_eq!(link_interface(copy.as_fd()).unwrap(), interface_index("lo").unwrap());
        drop(link);
        assert_eq!(link_interface(copy.as_fd()).unwrap(), 0);
    }

    #[test]
    fn attach_error_on_old_kernel_names_required_version() {
        let Some(tcx) = load(ProgramType::TcxIngress) else { return };
        let xdp = load(ProgramType::Xdp).unwrap();
        let text = |program, errno| fault(program, "eth7", io::Error::from_raw_os_error(errno)).to_string();
        let old = text(&tcx, libc::EINVAL);
        assert!(old.contains("eth7") && old.contains("Linux 6.6"), "{old}");
        let other = text(&xdp, libc::EBUSY);
        assert!(other.contains("eth7") && other.contains("test_link") && !other.contains("6.6"), "{other}");
    }

    #[test]
    fn interfaces_have_numbers() {
        assert!(interface_index("lo").unwrap() > 0);
        assert!(interface_index("nosuch0").unwrap_err().to_string().contains("nosuch0"));
    }
}
