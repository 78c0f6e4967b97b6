//! The FEC of a film as in docs/ref/rtsp.md, made ahead with core's code: the same that our server
//! sends from disk.

use std::time::Duration;

use millrace_core::fec::{Code, Spread};
use millrace_core::wire::fec::{FecHeader, FecKind, PAYLOAD_TYPE_FEC, protected_fields};
use millrace_core::wire::rtp::RtpHeader;

use super::{Behaviour, PAYLOAD, TS};

/// The server's handling of FEC.
#[derive(Clone, Debug)]
pub struct FecSending {
    /// Packets of a codeword.
    pub k: u32,
    /// Its parities.
    pub m: u32,
    /// Packets in a unit.
    pub unit: u32,
    /// FEC packets that the network loses: row, column, parity.
    pub drop: Vec<(u32, u32, u32)>,
    /// Why it is refused.
    pub refused: Option<&'static str>,
}

impl FecSending {
    pub fn new(k: u32, m: u32, unit: u32) -> Self {
        Self { k, m, unit, drop: Vec::new(), refused: None }
    }

    /// Packets of a row.
    pub fn row(&self) -> u32 {
        self.k * self.unit
    }

    /// Returns the answer to a SETUP that requests `wish` with RTP to `port`.
    pub fn grant(&self, wish: &str, port: u16) -> String {
        if let Some(reason) = self.refused {
            return format!("X-Millrace-FEC: off;reason=\"{reason}\"\r\n");
        }
        let Self { k, m, unit, .. } = self;
        let further = if wish == "all" { format!("rs_port={};", port + 6) } else { String::new() };
        format!(
            "X-Millrace-FEC: {wish};xor_port={};{further}pt=96;L={unit};D={k};k={k};m={m};U={unit}\r\n",
            port + 2
        )
    }
}

/// One FEC packet.
#[derive(Clone)]
pub struct FecPacket {
    /// First media packet of its row.
    pub row: u32,
    /// Sent behind this media packet.
    pub behind: u32,
    /// Its number in its stream.
    number: u32,
    /// Whether it is one of the further parities.
    pub is_further: bool,
    pub datagram: Vec<u8>,
}

/// All FEC packets of a film, in order of sending.
pub fn fec_packets(behaviour: &Behaviour, fec: &FecSending) -> Vec<FecPacket> {
    let code = Code::new(fec.k as usize, fec.m as usize).unwrap();
    let spread = Spread::new(fec.k as usize, fec.m as usize, fec.unit);
    let packets = behaviour.packets();
    let mut all = Vec::new();
    for row in 0..packets.div_ceil(fec.row()) {
        for column in 0..fec.unit {
            let first = row * fec.row() + column;
            let members: Vec<u32> =
                (0..fec.k).map(|u| first + u * fec.unit).filter(|n| *n < packets).collect();
            if members.is_empty() {
                continue;
            }
            for (parity, (fields, bytes)) in encode(behaviour, &code, &members).into_iter().enumerate() {
                let parity = parity as u32;
                if fec.drop.contains(&(row, column, parity)) {
                    continue;
                }
                let header = FecHeader {
                    sn_base: behaviour.first_sequence.wrapping_add(first as u16),
                    kind: if parity == 0 { FecKind::Xor } else { FecKind::ReedSolomon },
                    index: parity as u8,
                    offset: fec.unit as u8,
                    count: members.len() as u8,
                    ..FecHeader::default()
                };
                let slot = spread.slot(row, column, parity as usize);
                let number = if parity == 0 { slot } else { slot * (fec.m - 1) + parity - 1 };
                let behind = spread.departs_with(slot).min(u64::from(packets - 1)) as u32;
                let rtp = RtpHeader {
                    marker: false,
                    payload_type: PAYLOAD_TYPE_FEC,
                    sequence: (number + 1) as u16,
                    timestamp: behaviour.timestamp(behind),
                    ssrc: 0,
                };
                let mut datagram = rtp.emit().to_vec();
                datagram.extend(header.with_recovery(fields.try_into().unwrap()).emit());
                datagram.extend(bytes);
                all.push(FecPacket {
                    row: row * fec.row(),
                    behind,
                    number,
                    is_further: parity > 0,
                    datagram,
                });
            }
        }
    }
    all.sort_by_key(|packet| (packet.behind, packet.is_further, packet.number));
    all
}

/// The parities of a column: recovery fields and payload of each.
fn encode(behaviour: &Behaviour, code: &Code, members: &[u32]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let parities = |symbols: &[Vec<u8>], len: usize| {
        let data: Vec<&[u8]> = symbols.iter().map(Vec::as_slice).collect();
        let mut parities = vec![vec![0; len]; code.m()];
        code.encode(&data, &mut parities.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        parities
    };
    let payloads: Vec<_> = members.iter().map(|n| behaviour.payload(*n).to_vec()).collect();
    let fields =
        |n: &u32| protected_fields(behaviour.payload(*n).len() as u16, 33, behaviour.timestamp(*n)).to_vec();
    let fields: Vec<_> = members.iter().map(fields).collect();
    parities(&fields, 7).into_iter().zip(parities(&payloads, PAYLOAD)).collect()
}

/// Packets that the film has; not a whole number of rows, the last packet short.
pub const PACKETS: usize = 330;

/// A server that sends such a film with this FEC.
pub fn behaviour(fec: FecSending) -> Behaviour {
    let mut behaviour = Behaviour::new(PACKETS);
    behaviour.film.truncate((PACKETS - 1) * PAYLOAD + 3 * TS);
    behaviour.first_sequence = 65_400;
    behaviour.bye = Some(Duration::from_millis(300));
    behaviour.fec = Some(fec);
    behaviour
}

/// Singles, a burst of a unit, the film's first packet and its last.
pub fn losses(fec: &FecSending) -> Vec<u32> {
    let mut lost = vec![0, 33, fec.row() + 7, PACKETS as u32 - 1];
    lost.extend(2 * fec.row() + 3..2 * fec.row() + 3 + fec.unit);
    lost
}
