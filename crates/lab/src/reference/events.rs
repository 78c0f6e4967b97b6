//! One thread, a heap of due times, one `sendmmsg` for all packets that are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::IoSlice;
use std::net::UdpSocket;
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;

use super::media::{BLOCK_BYTES, HEADER_BYTES, ReferenceMedia, rtp_header};
use super::{SenderOptions, sleep_until};
use crate::raw_send::{RawGather, RawSender};

/// Packets of one call.
const BATCH: usize = 64;
/// Send buffer to ask for.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// The stream of one viewer.
struct ReferenceStream {
    next_block: u64,
    sequence: u16,
    /// Blocks sent: its clock.
    sent: u64,
}

/// A packet of the batch.
struct BatchPacket {
    stream: u32,
    block: u64,
    header: [u8; HEADER_BYTES],
}

pub(super) fn socket(options: &SenderOptions) -> anyhow::Result<UdpSocket> {
    let bind = if options.to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(bind).context("make a socket")?;
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)
        .context("ask for a send buffer")?;
    Ok(socket)
}

pub(super) fn run(options: &SenderOptions) -> anyhow::Result<()> {
    play(options, &ReferenceMedia::open_all(options.files.iter())?)
}

pub(super) fn play(options: &SenderOptions, media: &[ReferenceMedia]) -> anyhow::Result<()> {
    let (pace, burst) = (options.pace(), options.burst_blocks());
    let mut sender = RawSender::new(socket(options)?, BATCH);
    let mut streams = Vec::new();
    for i in 0..options.streams {
        let next_block = options.first_block(i, media[i as usize % media.len()].blocks())?;
        streams.push(ReferenceStream { next_block, sequence: i as u16, sent: 0 });
    }
    let start = StdInstant::now();
    let phase_ns = |i: u32| pace.at_ns(burst) * u64::from(i) / u64::from(options.streams);
    let mut due: BinaryHeap<Reverse<(u64, u32)>> =
        (0..options.streams).map(|i| Reverse((phase_ns(i), i))).collect();
    let mut batch = Batch { jobs: Vec::with_capacity(BATCH), buffer: vec![0; BATCH * BLOCK_BYTES] };
    while let Some(&Reverse((next_ns, _))) = due.peek() {
        sleep_until(start + Duration::from_nanos(next_ns));
        let now_ns = start.elapsed().as_nanos() as u64;
        while let Some(&Reverse((due_ns, index))) = due.peek() {
            if due_ns > now_ns {
                break;
            }
            due.pop();
            let source = &media[index as usize % media.len()];
            let stream = &mut streams[index as usize];
            for _ in 0..burst.min(source.blocks().saturating_sub(stream.next_block)) {
                let header = rtp_header(stream.sequence, pace.ticks(stream.next_block), index);
                batch.jobs.push(BatchPacket { stream: index, block: stream.next_block, header });
                stream.next_block += 1;
                stream.sequence = stream.sequence.wrapping_add(1);
                stream.sent += 1;
                if batch.jobs.len() == BATCH {
                    batch.flush(options, media, &mut sender)?;
                }
            }
            if stream.next_block < source.blocks() {
                due.push(Reverse((phase_ns(index) + pace.at_ns(stream.sent), index)));
            }
        }
        batch.flush(options, media, &mut sender)?;
    }
    Ok(())
}

struct Batch {
    jobs: Vec<BatchPacket>,
    buffer: Vec<u8>,
}

impl Batch {
    /// Sends the batch, in one call if the kernel takes it all.
    fn flush(
        &mut self,
        options: &SenderOptions,
        media: &[ReferenceMedia],
        sender: &mut RawSender,
    ) -> anyhow::Result<()> {
        let mut rest = self.buffer.as_mut_slice();
        let mut pieces: Vec<[IoSlice<'_>; 2]> = Vec::with_capacity(self.jobs.len());
        for job in &self.jobs {
            let payload = match &media[job.stream as usize % media.len()] {
                ReferenceMedia::Memory(bytes) => &bytes[job.block as usize * BLOCK_BYTES..][..BLOCK_BYTES],
                ReferenceMedia::File(file) => {
                    let (room, behind) = rest.split_at_mut(BLOCK_BYTES);
                    rest = behind;
                    file.read(job.block, room).context("read a block")?;
                    room
                }
            };
            pieces.push([IoSlice::new(&job.header), IoSlice::new(payload)]);
        }
        let messages: Vec<RawGather<'_>> = (self.jobs.iter().zip(&pieces))
            .map(|(job, parts)| RawGather { to: options.destination(job.stream), parts, segment_bytes: 0 })
            .collect();
        let mut done = 0;
        while done < messages.len() {
            done += sender.send_gather(&messages[done..]).context("sendmmsg")?;
        }
        drop(messages);
        drop(pieces);
        self.jobs.clear();
        Ok(())
    }
}
