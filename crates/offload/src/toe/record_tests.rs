//! Each record is read as it was written; anything else is refused; nothing panics.

use super::*;

fn v4() -> SocketAddr {
    "192.0.2.1:80".parse().unwrap()
}

fn v6() -> SocketAddr {
    SocketAddrV6::new("fe80::7".parse().unwrap(), 65_535, 0, 3).into()
}

#[test]
fn requests_are_read_as_they_were_written() {
    let requests = [
        HostRequest::Listen { socket: 1, backlog: 128, sharing: Sharing::default(), local: v4() },
        HostRequest::Listen {
            socket: u32::MAX,
            backlog: u32::MAX,
            sharing: Sharing { is_shared: true, key: u64::MAX - 1 },
            local: v6(),
        },
        HostRequest::Take { socket: 10 },
        HostRequest::Accept { listener: 2, socket: 3 },
        HostRequest::Connect { socket: 4, local: v4(), remote: v6() },
        HostRequest::Send { socket: 5, offset: 0xdead_beef, bytes: 0xcafe_babe },
        HostRequest::SendExtent { socket: 5 },
        HostRequest::Shutdown { socket: 6 },
        HostRequest::Close { socket: 7, is_reset: true },
        HostRequest::Close { socket: 7, is_reset: false },
        HostRequest::Set { socket: 8, option: Choice::NoDelay, is_on: true },
        HostRequest::Set { socket: 8, option: Choice::KeepAlive, is_on: false },
        HostRequest::Set { socket: 8, option: Choice::Cork, is_on: true },
        HostRequest::Wake { socket: 9, at: u64::MAX },
        HostRequest::Give { count: 12, buffers: std::array::from_fn(|i| 100 + i as u32) },
    ];
    for request in requests {
        assert_eq!(HostRequest::decode(&request.encode()), Some(request));
    }
}

#[test]
fn events_are_read_as_they_were_written() {
    for error in [None].into_iter().chain(Fault::ALL.map(Some)) {
        let events = [
            HostEvent::Listening { socket: 1, error, local: v6() },
            HostEvent::Accepted { socket: 2, error, generation: 7, local: v4(), remote: v4() },
            HostEvent::Connected { socket: 3, error, generation: u16::MAX, local: v6(), remote: v6() },
            HostEvent::End { socket: 4, error },
            HostEvent::Done { socket: 5, error },
        ];
        for event in events {
            assert_eq!(HostEvent::decode(&event.encode()), Some(event));
        }
    }
    for event in [
        HostEvent::Data { socket: 1, buffer: u32::MAX, bytes: 7 },
        HostEvent::Room { socket: 2 },
        HostEvent::Closed { socket: u32::MAX },
        HostEvent::Recalled { socket: 3 },
    ] {
        assert_eq!(HostEvent::decode(&event.encode()), Some(event));
    }
}

#[test]
fn decode_of_invalid_record_returns_none() {
    let refused = [
        [0; 7],
        [255, 0, 0, 0, 0, 0, 0],
        first_only(first(GIVE, 13, 0)),
        [first(SET, 0, 1), two(3, 0), 0, 0, 0, 0, 0],
        // Marked as IPv4, and it is not.
        [first(LISTEN, 0, 1), 1, 2, IS_V4, 0, 0, 0],
    ];
    for record in refused {
        assert_eq!(HostRequest::decode(&record), None, "{record:?}");
    }
    for record in [[0; 7], first_only(first(END, Fault::ALL.len() as u8 + 1, 0)), first_only(first(99, 0, 0))]
    {
        assert_eq!(HostEvent::decode(&record), None, "{record:?}");
    }
}

fn first_only(word: u64) -> Record {
    [word, 0, 0, 0, 0, 0, 0]
}

/// A record read from any seven words stays the same when it is written and read again.
#[test]
fn decode_and_encode_of_any_words_round_trip() {
    bolero::check!().with_type::<[u64; 7]>().for_each(|record| {
        for kind in 0..=10 {
            let mut record = *record;
            record[0] = record[0] & !0xff | kind;
            if let Some(request) = HostRequest::decode(&record) {
                assert_eq!(HostRequest::decode(&request.encode()), Some(request));
            }
            if let Some(event) = HostEvent::decode(&record) {
                assert_eq!(HostEvent::decode(&event.encode()), Some(event));
            }
        }
    });
}
