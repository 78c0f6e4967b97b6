use super::*;
use std::net::UdpSocket;
use std::os::fd::AsFd;

fn pair() -> (UdpSocket, UdpSocket, SocketAddr) {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = receiver.local_addr().unwrap();
    (UdpSocket::bind("127.0.0.1:0").unwrap(), receiver, addr)
}

#[test]
fn messages_go_to_their_own_addresses_with_their_parts_in_order() {
    let (sender, one, one_addr) = pair();
    let two = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut arena = SendArena::new(4, 6);
    let bytes: Vec<u8> = (0..100).collect();
    let mut plan = arena.plan();
    plan.to(one_addr, None);
    plan.push(None, [&bytes[..10], &bytes[20..25]]);
    // A destination that gets no message leaves no trace.
    plan.to("192.0.2.1:9".parse().unwrap(), None);
    plan.to(two.local_addr().unwrap(), None);
    plan.push(None, [&bytes[50..]]);
    plan.push(None, []);
    assert_eq!(plan.len(), 3);
    assert_eq!(plan.send(sender.as_fd(), 0..3), Ok(3));
    // Only from message 1 on.
    assert_eq!(plan.send(sender.as_fd(), 1..3), Ok(2));
    assert_eq!(plan.send(sender.as_fd(), 3..3), Ok(0));

    let mut arena = RecvArena::new(8, 64);
    assert_eq!(arena.receive(one.as_fd(), 0), Ok(1));
    let message = arena.get(0);
    assert_eq!(message.bytes, [&bytes[..10], &bytes[20..25]].concat());
    assert_eq!((message.name, message.truncated), (Some(sender.local_addr().unwrap()), false));
    assert_eq!(arena.receive(two.as_fd(), 0), Ok(4));
    let lengths: Vec<_> = (0..4).map(|i| arena.get(i).bytes.len()).collect();
    assert_eq!(lengths, [50, 0, 50, 0]);
    assert_eq!(arena.receive(two.as_fd(), 0), Err(libc::EAGAIN));
    assert_eq!(arena.len(), 0);
}

#[test]
fn room_is_counted_in_messages_and_parts() {
    let mut arena = SendArena::new(2, 3);
    let bytes = [1, 2, 3];
    let mut plan = arena.plan();
    plan.to("127.0.0.1:9".parse().unwrap(), None);
    assert!(plan.has_room(3) && !plan.has_room(4));
    plan.push(None, [&bytes[..], &bytes[..]]);
    assert!(plan.has_room(1) && !plan.has_room(2));
    plan.push(None, [&bytes[..]]);
    assert!(!plan.has_room(0), "two messages are in");
    assert!(arena.plan().has_room(3), "a new plan is empty");
}

#[test]
fn send_errno_belongs_to_first_message() {
    let (sender, receiver, addr) = pair();
    let long = vec![0; 70_000];
    let mut arena = SendArena::new(2, 2);
    let mut plan = arena.plan();
    plan.to(addr, None);
    plan.push(None, [&long[..5]]);
    plan.push(None, [&long[..]]);
    assert_eq!(plan.send(sender.as_fd(), 0..9), Ok(1));
    assert_eq!(plan.send(sender.as_fd(), 1..2), Err(libc::EMSGSIZE));
    let mut arena = RecvArena::new(2, 4);
    assert_eq!(arena.receive(receiver.as_fd(), 0), Ok(1));
    assert_eq!((arena.get(0).bytes.len(), arena.get(0).truncated), (4, true));
}

#[test]
#[should_panic(expected = "message 0 of 0")]
fn get_of_unreceived_message_panics() {
    RecvArena::new(1, 8).get(0);
}

#[test]
fn arenas_may_change_threads() {
    let (sender, receiver, addr) = pair();
    let mut arena = SendArena::new(1, 1);
    let bytes = [9; 3];
    let mut plan = arena.plan();
    plan.to(addr, None);
    plan.push(None, [&bytes[..]]);
    assert_eq!(plan.send(sender.as_fd(), 0..9), Ok(1));
    let sent = std::thread::spawn(move || {
        let bytes = [7; 2];
        let mut plan = arena.plan();
        plan.to(addr, None);
        plan.push(None, [&bytes[..]]);
        plan.send(sender.as_fd(), 0..1)
    });
    assert_eq!(sent.join().unwrap(), Ok(1));
    let mut arena = RecvArena::new(4, 8);
    assert_eq!(arena.receive(receiver.as_fd(), 0), Ok(2));
    assert_eq!((arena.get(0).bytes, arena.get(1).bytes), (&[9; 3][..], &[7; 2][..]));
}
