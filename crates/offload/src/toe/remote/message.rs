//! What crosses the engine's socket before a queue pair does. Each message is one packet of it: a head of two 32-bit words, magic and kind, then
//! words that depend on the kind, all little-endian. A packet that is longer or shorter than its kind says is none.

use std::net::{IpAddr, Ipv6Addr};

use millrace_core::limits::ip::MAX_ADDRESSES;
use millrace_core::limits::toe::MAX_REFUSAL_BYTES;

use crate::toe::pair::PairSettings;

/// "MTE" and the version of the layout: of these messages, of the records and of a pair's memory.
const MAGIC: u32 = u32::from_le_bytes(*b"MTE\x01");

const ATTACH: u32 = 1;
const WELCOME: u32 = 2;
const REFUSED: u32 = 3;

/// What comes or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the engine: a queue pair, please.
    Attach,
    /// To a host: here it is. Two descriptors come with it, its memory and an end of the sockets of its bells.
    Welcome(Welcome),
    /// To a program: no.
    Refused(Refusal, String),
}

/// What a host has to know of its pair and of its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// Which of the engine's pairs it is.
    pub(super) number: u16,
    pub(super) pair: PairSettings,
    /// Addresses of the engine, and the lengths of their subnets' prefixes.
    pub(super) addresses: Vec<(IpAddr, u8)>,
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Refusal {
    /// This user may not.
    NotAllowed = 1,
    /// Every pair is taken.
    Full,
    /// The engine has no memory or descriptors for another pair.
    NoMemory,
    /// The message was none, or none that fits here.
    Unknown,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::NotAllowed, Self::Full, Self::NoMemory, Self::Unknown];
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = match self {
            Self::Attach => ATTACH,
            Self::Welcome(_) => WELCOME,
            Self::Refused(..) => REFUSED,
        };
        let mut words = vec![MAGIC, kind];
        match self {
            Self::Attach => {}
            Self::Welcome(Welcome { number, pair, addresses }) => {
                words.push(u32::from(*number));
                words.push(u32::from(pair.listeners));
                words.extend(numbers(&mut pair.clone()).map(|number| *number));
                for &(address, prefix) in addresses.iter().take(MAX_ADDRESSES) {
                    let (bytes, family) = match address {
                        IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), 4),
                        IpAddr::V6(ip) => (ip.octets(), 6),
                    };
                    words.extend(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
                    words.push(u32::from(prefix) | family << 8);
                }
            }
            Self::Refused(why, _) => words.push(*why as u32),
        }
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        if let Self::Refused(_, text) = self {
            let end = (0..=text.len().min(MAX_REFUSAL_BYTES)).rev().find(|&at| text.is_char_boundary(at));
            bytes.extend_from_slice(&text.as_bytes()[..end.unwrap_or(0)]);
        }
        bytes
    }

    /// `None`: it is none, or one of another version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(8)?;
        let head = words(head)?;
        if head[0] != MAGIC {
            return None;
        }
        match head[1] {
            ATTACH if rest.is_empty() => Some(Self::Attach),
            WELCOME => Welcome::decode(&words(rest)?).map(Self::Welcome),
            REFUSED => {
                let (why, text) =
                    rest.split_at_checked(4).filter(|(_, text)| text.len() <= MAX_REFUSAL_BYTES)?;
                let why = words(why)?[0];
                let why = Refusal::ALL.into_iter().find(|&known| known as u32 == why)?;
                Some(Self::Refused(why, std::str::from_utf8(text).ok()?.to_owned()))
            }
            _ => None,
        }
    }
}

impl Welcome {
    fn decode(words: &[u32]) -> Option<Self> {
        let (&number, words) = words.split_first()?;
        let number = u16::try_from(number).ok()?;
        let (&listeners, words) = words.split_first()?;
        let mut pair = PairSettings { listeners: u8::try_from(listeners).ok()?, ..PairSettings::default() };
        let numbers = numbers(&mut pair);
        let (of_pair, rest) = words.split_at_checked(numbers.len())?;
        numbers.into_iter().zip(of_pair).for_each(|(number, word)| *number = *word);
        let (addresses, []) = rest.as_chunks::<5>() else { return None };
        if addresses.len() > MAX_ADDRESSES {
            return None;
        }
        let addresses = addresses.iter().map(|&[a, b, c, d, last]| {
            let mut octets = [0; 16];
            for (four, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip([a, b, c, d]) {
                *four = word.to_le_bytes();
            }
            let ip = Ipv6Addr::from(octets);
            let prefix = last as u8;
            match last >> 8 {
                4 if prefix <= 32 => Some((IpAddr::V4(ip.to_ipv4_mapped()?), prefix)),
                6 if prefix <= 128 => Some((IpAddr::V6(ip), prefix)),
                _ => None,
            }
        });
        Some(Self { number, pair, addresses: addresses.collect::<Option<_>>()? })
    }
}

fn words(bytes: &[u8]) -> Option<Vec<u32>> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// What of a pair crosses, and in which order; the listeners go before.
fn numbers(pair: &mut PairSettings) -> [&mut u32; 9] {
    let PairSettings {
        sockets,
        listeners: _,
        requests,
        send_bytes,
        send_buffers,
        receive_bytes,
        receive_buffers,
        receive_share,
        send_share_bytes,
        wake_bytes,
    } = pair;
    [
        sockets,
        requests,
        send_bytes,
        send_buffers,
        receive_bytes,
        receive_buffers,
        receive_share,
        send_share_bytes,
        wake_bytes,
    ]
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
