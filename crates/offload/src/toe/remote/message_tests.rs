//! What is read is what was written, and nothing else is a message.

use millrace_core::limits::toe::MAX_HANDSHAKE_BYTES;

use super::*;

fn all() -> Vec<Message> {
    let addresses: Vec<(IpAddr, u8)> =
        vec![("10.0.0.1".parse().unwrap(), 24), ("2001:db8::1".parse().unwrap(), 64)];
    vec![
        Message::Attach,
        Message::Welcome(Welcome { number: 63, pair: PairSettings::default(), addresses }),
        Message::Welcome(Welcome { number: 0, pair: PairSettings::default(), addresses: Vec::new() }),
        Message::Refused(Refusal::NotAllowed, "for ünknown reasons".to_owned()),
        Message::Refused(Refusal::Full, String::new()),
    ]
}

#[test]
fn messages_come_back_and_fit() {
    for message in all() {
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_HANDSHAKE_BYTES);
        assert_eq!(Message::decode(&bytes), Some(message));
    }
    let long = Message::Refused(Refusal::Unknown, "ü".repeat(MAX_REFUSAL_BYTES));
    let Some(Message::Refused(_, text)) = Message::decode(&long.encode()) else { panic!("none") };
    assert_eq!(text, "ü".repeat(MAX_REFUSAL_BYTES / 2));
}

/// Each byte of each message matters, and so does its length.
#[test]
fn what_is_cut_longer_or_of_another_version_is_none() {
    for message in all() {
        let bytes = message.encode();
        let text = matches!(message, Message::Refused(..));
        for len in 0..bytes.len() {
            // The text of a refusal may be shorter.
            let cut = Message::decode(&bytes[..len]);
            assert!(
                cut.is_none() || (text && len >= 12) || (len - 12) % 20 == 40 % 20,
                "{message:?} of {len} bytes"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(text || Message::decode(&longer).is_none(), "{message:?}");
        for at in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert_eq!(Message::decode(&other), None, "{message:?} with another byte {at}");
        }
    }
}

/// Anything that can come is refused or means what its own encoding says.
#[test]
fn anything_can_come() {
    let seeds: Vec<Vec<u8>> = all().iter().map(Message::encode).collect();
    bolero::check!().with_type::<(u8, Vec<(u16, u8)>, Vec<u8>)>().for_each(|(seed, changes, rest)| {
        let mut bytes = match seeds.get(usize::from(*seed) % (seeds.len() + 1)) {
            Some(bytes) => bytes.clone(),
            None => Vec::new(),
        };
        for &(at, value) in changes {
            let at = usize::from(at) % (bytes.len() + 1);
            bytes.resize(bytes.len().max(at + 1), 0);
            bytes[at] = value;
        }
        bytes.extend_from_slice(rest);
        if let Some(message) = Message::decode(&bytes) {
            assert_eq!(message.encode(), bytes);
        }
    });
}
