//! Properties of sockets that can be tested without a network: the interpretation of errors, and
//! their texts.

use super::*;
use millrace_core::pool::HeapRegion;

fn config(interface: &str) -> SocketConfig {
    SocketConfig {
        interface: interface.to_owned(),
        queue: 3,
        arena: ExtentArena::new(Box::new(HeapRegion::new(1))),
        zero_copy: false,
        multi: false,
        tx_entries: 64,
        rx_entries: 0,
        tx_budget: 64,
    }
}

#[test]
fn answers_of_the_kernel_are_told_apart() {
    assert_eq!(Kick::of(Ok(())), Kick::Done);
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS] {
        assert_eq!(Kick::of(Err(errno)), Kick::Again);
    }
    for errno in [libc::ENETDOWN, libc::ENXIO, libc::EBADF] {
        assert_eq!(Kick::of(Err(errno)), Kick::Dead(errno));
    }
}

#[test]
fn open_on_missing_interface_returns_error() {
    let error = XdpSocket::open(&config("nosuch0")).err().unwrap().to_string();
    assert!(error.contains("nosuch0") && error.contains("no such interface"), "{error}");
}

#[test]
fn errors_say_what_to_do() {
    let config = config("eth7");
    let fault = Fault(&config);
    let errno = io::Error::from_raw_os_error;
    for (error, wanted) in [
        (fault.make(errno(libc::EPERM)), "CAP_NET_RAW"),
        (fault.make(errno(libc::EAFNOSUPPORT)), "CONFIG_XDP_SOCKETS"),
        (fault.register(errno(libc::ENOBUFS)), "262144 bytes"),
        (fault.register(errno(libc::ENOMEM)), "CAP_IPC_LOCK"),
        (fault.register(errno(libc::EINVAL)), "Linux 5.4"),
        (fault.bind(errno(libc::EBUSY)), "another AF_XDP socket"),
        (fault.bind(errno(libc::EINVAL)), "no such queue"),
        (fault.bind(errno(libc::EOPNOTSUPP)), "zero-copy"),
        (fault.bind(errno(libc::ENETDOWN)), "ip link set up"),
        (fault.ring(errno(libc::ENOMEM)), "rings"),
    ] {
        let text = error.to_string();
        assert!(text.contains(wanted) && text.contains("eth7"), "{text}");
    }
}
