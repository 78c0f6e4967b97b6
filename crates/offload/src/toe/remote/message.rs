//! Messages that cross the engine's socket before a queue pair does. Each message is one packet of
//! it: a head of two 32-bit words, magic and kind, then words that depend on the kind, all
//! little-endian. A packet that is longer or shorter than its kind requires is not a message.

use std::net::IpAddr;

use millrace_core::limits::ip::MAX_ADDRESSES;
use millrace_tcp::ports::PortSet;

use super::report::{Page, WordReader, WordWriter, subnet};
use crate::limits::MAX_REFUSAL_BYTES;
use crate::toe::pair::PairSettings;
use crate::toe::status::EngineStatus;

/// "MTE" and the version of the layout: of these messages, of the records and of a pair's memory.
const MAGIC: u32 = u32::from_le_bytes(*b"MTE\x03");

const ATTACH: u32 = 1;
const WELCOME: u32 = 2;
const REFUSED: u32 = 3;
const ASK_STATUS: u32 = 4;
const STATUS: u32 = 5;
const ASK_CONNECTIONS: u32 = 6;
const CONNECTIONS: u32 = 7;

/// A message in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GateMessage {
    /// To the engine: a queue pair, please.
    Attach,
    /// To a host: here it is. Two descriptors come with it, its memory and an end of the sockets of its bells.
    Welcome(Welcome),
    /// To a program: no.
    Refused(Refusal, String),
    /// To the engine: how are you?
    AskStatus,
    /// So.
    Status(Box<EngineStatus>),
    /// To the engine: some connections, from this place on.
    AskConnections(u32),
    /// Here they are.
    Connections(Page),
}

/// A host's information about its pair and its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// Which of the engine's pairs it is.
    pub(super) number: u16,
    pub(super) pair: PairSettings,
    /// Addresses of the engine, and the lengths of their subnets' prefixes.
    pub(super) addresses: Vec<(IpAddr, u8)>,
    /// The ports that it has of them; `None`: all, they are its own.
    pub(super) ports: Option<PortSet>,
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

impl GateMessage {
    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = match self {
            Self::Attach => ATTACH,
            Self::Welcome(_) => WELCOME,
            Self::Refused(..) => REFUSED,
            Self::AskStatus => ASK_STATUS,
            Self::Status(_) => STATUS,
            Self::AskConnections(_) => ASK_CONNECTIONS,
            Self::Connections(_) => CONNECTIONS,
        };
        let mut writer = WordWriter(vec![MAGIC, kind]);
        let words = &mut writer.0;
        match self {
            Self::Attach | Self::AskStatus => {}
            Self::Status(status) => status.write(&mut writer),
            Self::AskConnections(from) => words.push(*from),
            Self::Connections(page) => page.write(&mut writer),
            Self::Welcome(Welcome { number, pair, addresses, ports }) => {
                words.push(u32::from(*number));
                words.push(u32::from(pair.listeners));
                words.extend(numbers(&mut pair.clone()).map(|number| *number));
                writer.ports(ports.as_ref());
                let addresses = addresses.iter().take(MAX_ADDRESSES);
                addresses.for_each(|&(address, prefix)| writer.address(address, prefix.into()));
            }
            Self::Refused(why, _) => words.push(*why as u32),
        }
        let mut bytes: Vec<u8> = writer.0.into_iter().flat_map(u32::to_le_bytes).collect();
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
            ASK_STATUS if rest.is_empty() => Some(Self::AskStatus),
            STATUS => {
                EngineStatus::read(WordReader(&words(rest)?)).map(|status| Self::Status(Box::new(status)))
            }
            ASK_CONNECTIONS => match words(rest)?[..] {
                [from] => Some(Self::AskConnections(from)),
                _ => None,
            },
            CONNECTIONS => Page::read(WordReader(&words(rest)?)).map(Self::Connections),
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
        let (mut rest, mut addresses) = (WordReader(rest), Vec::new());
        let ports = rest.ports()?;
        while !rest.is_empty() {
            if addresses.len() == MAX_ADDRESSES {
                return None;
            }
            addresses.push(subnet(&mut rest)?);
        }
        Some(Self { number, pair, addresses, ports })
    }
}

fn words(bytes: &[u8]) -> Option<Vec<u32>> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// Returns the numbers of a pair that cross, in their order; the listeners go before. A host's
/// reserve is its own affair.
fn numbers(pair: &mut PairSettings) -> [&mut u32; 9] {
    let PairSettings {
        sockets,
        listeners: _,
        requests,
        send_bytes,
        send_buffers,
        send_reserve: _,
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
