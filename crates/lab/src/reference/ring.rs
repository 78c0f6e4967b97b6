//! Streams in a fixed ring, one burst after the other, each cut into datagrams by the kernel. There is no scheduler: all
//! streams have one rate, so the order never changes and the next due time is arithmetic.

use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, ensure};

use super::events::socket;
use super::media::{DATAGRAM_BYTES, MAX_BURST_BLOCKS, wire_form};
use super::{SenderOptions, sleep_until};
use crate::raw_send::{RawMessage, RawSender};

/// Bursts of one call.
const BATCH: usize = 64;
/// How long it sleeps when nothing is due: bursts gather meanwhile.
const NAP: Duration = Duration::from_millis(1);

pub(super) fn run(options: &SenderOptions) -> anyhow::Result<()> {
    let pace = options.pace();
    let media = (0u32..).zip(&options.files).map(|(n, path)| wire_form(path, pace, n));
    let media = media.collect::<anyhow::Result<Vec<Vec<u8>>>>()?;
    let burst = options.burst_blocks();
    ensure!(burst <= MAX_BURST_BLOCKS, "a burst of {burst} packets is more than one message can hold");
    let mut sender = RawSender::new(socket(options)?, BATCH);
    let blocks = |i: u32| (media[i as usize % media.len()].len() / DATAGRAM_BYTES) as u64;
    let places = (0..options.streams).map(|i| Ok(options.first_block(i, blocks(i))? as usize));
    let mut places = places.collect::<anyhow::Result<Vec<usize>>>()?;
    let streams = options.streams as usize;
    let mut messages: Vec<RawMessage<'_>> = Vec::with_capacity(BATCH);
    let start = StdInstant::now();
    // Burst number n of all: round n / streams, stream n % streams.
    let mut n = 0u64;
    let mut playing = streams;
    while playing > 0 {
        let now_ns = start.elapsed().as_nanos() as u64;
        while messages.len() < BATCH && playing > 0 {
            let (round, index) = (n / streams as u64, (n % streams as u64) as usize);
            let due_ns = pace.at_ns(round * burst) + pace.at_ns(burst) * index as u64 / streams as u64;
            if due_ns > now_ns {
                break;
            }
            n += 1;
            let (file, at) = (&media[index % media.len()], places[index] * DATAGRAM_BYTES);
            if at >= file.len() {
                continue;
            }
            let end = file.len().min(at + burst as usize * DATAGRAM_BYTES);
            places[index] += burst as usize;
            playing -= usize::from(end == file.len());
            messages.push(RawMessage {
                to: options.destination(index as u32),
                bytes: &file[at..end],
                segment_bytes: DATAGRAM_BYTES as u16,
            });
        }
        if messages.is_empty() {
            sleep_until(StdInstant::now() + NAP);
            continue;
        }
        let mut done = 0;
        while done < messages.len() {
            done += sender.send(&messages[done..]).context("sendmmsg")?;
        }
        messages.clear();
    }
    Ok(())
}
