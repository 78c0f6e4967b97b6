//! One thread, a heap of due times, and one call for as much as the kernel takes in one: `sendmmsg` with `UDP_SEGMENT` where a block has
//! several datagrams; by TCP a send (or sendfile) a stream, on sockets that do not block.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};

use anyhow::{Context, bail};

use super::media::BlockReader;
use super::{SendMethod, SendPlan, Transport, now_ns, say_ready, sleep_until};
use crate::raw_send::{RawMessage, RawSender};

/// Blocks of one call.
const BATCH: usize = 64;
/// Send buffer to ask for.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// It wakes at most this often: packets due meanwhile leave together.
const TICK_NS: u64 = 1_000_000;

/// The stream of one viewer.
struct EventStream {
    to: To,
    /// The next block.
    block: u64,
    /// The next byte of its file that its connection has not taken.
    at: u64,
}

enum To {
    Udp(std::net::SocketAddr),
    Tcp(TcpStream),
    /// The viewer left.
    Nobody,
}

/// Where blocks come from.
enum Origin {
    /// A file for each title, or for each stream if streams keep reads of their own in memory.
    Files(Vec<BlockReader>),
    /// Each title, whole.
    Memory(Vec<Vec<u8>>),
}

impl Origin {
    /// Where stream `index` finds its bytes.
    fn place(&self, index: u32) -> usize {
        let count = match self {
            Self::Files(files) => files.len(),
            Self::Memory(titles) => titles.len(),
        };
        index as usize % count.max(1)
    }

    /// Blocks of stream `index`.
    fn blocks(&self, index: u32, unit: usize) -> u64 {
        match self {
            Self::Files(files) => files[self.place(index)].blocks(),
            Self::Memory(titles) => (titles[self.place(index)].len() / unit) as u64,
        }
    }
}

pub(super) fn run(plan: &SendPlan) -> anyhow::Result<()> {
    let from = match plan.kind {
        SendMethod::EventsMemory => {
            let whole = |title| Ok(BlockReader::open(plan, title)?.whole()?);
            Origin::Memory((0..plan.titles).map(whole).collect::<anyhow::Result<_>>()?)
        }
        _ => {
            let files = if plan.read_bytes > 0 { plan.streams } else { plan.titles };
            Origin::Files(
                (0..files).map(|index| BlockReader::open(plan, index)).collect::<anyhow::Result<_>>()?,
            )
        }
    };
    let mut events = Loop::new(plan, from)?;
    let now = now_ns();
    let mut due: BinaryHeap<Reverse<(u64, u32)>> =
        (0..plan.streams).map(|index| Reverse((plan.first_due_ns(index, now), index))).collect();
    let mut woke_ns = now;
    while let Some(&Reverse((next_ns, _))) = due.peek() {
        sleep_until(next_ns.max(woke_ns + TICK_NS));
        woke_ns = now_ns();
        while let Some(mut next) = due.peek_mut() {
            let Reverse((due_ns, index)) = *next;
            if due_ns > woke_ns {
                break;
            }
            if events.send(index)? {
                *next = Reverse((due_ns + plan.blocks.interval_ns, index));
            } else {
                std::collections::binary_heap::PeekMut::pop(next);
            }
        }
        events.flush()?;
    }
    Ok(())
}

struct Loop<'a> {
    plan: &'a SendPlan,
    from: Origin,
    streams: Vec<EventStream>,
    sender: RawSender,
    /// Blocks of the batch: stream and block.
    jobs: Vec<(u32, u64)>,
    /// Their bytes, if they are read.
    buffer: Vec<u8>,
    unit: usize,
    segment_bytes: u16,
}

impl<'a> Loop<'a> {
    fn new(plan: &'a SendPlan, from: Origin) -> anyhow::Result<Self> {
        let mut streams = Vec::with_capacity(plan.streams as usize);
        let unit = plan.blocks.block_bytes(plan.transport);
        let connections = match plan.transport {
            Transport::Udp => Vec::new(),
            Transport::Tcp => accept_all(plan)?,
        };
        let mut connections = connections.into_iter();
        for index in 0..plan.streams {
            let blocks = from.blocks(index, unit);
            let to = match connections.next() {
                Some(connection) => To::Tcp(connection),
                None => To::Udp(plan.destination(index)?),
            };
            let block = plan.first_block(index, blocks)?;
            streams.push(EventStream { to, block, at: block * unit as u64 });
        }
        if plan.transport == Transport::Udp {
            say_ready();
        }
        let is_ipv4 = plan.to.iter().all(std::net::IpAddr::is_ipv4);
        let socket =
            UdpSocket::bind(if is_ipv4 { "0.0.0.0:0" } else { "[::]:0" }).context("make a socket")?;
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)
            .context("ask for a send buffer")?;
        let several = plan.blocks.datagrams > 1;
        Ok(Self {
            plan,
            from,
            streams,
            sender: RawSender::new(socket, BATCH),
            jobs: Vec::with_capacity(BATCH),
            buffer: vec![0; BATCH * unit],
            unit,
            segment_bytes: if several { plan.blocks.unit_bytes(plan.transport) as u16 } else { 0 },
        })
    }

    /// The next block of a stream; whether there is anything left.
    fn send(&mut self, index: u32) -> anyhow::Result<bool> {
        let stream = &mut self.streams[index as usize];
        let blocks = self.from.blocks(index, self.unit);
        match stream.to {
            To::Udp(_) if stream.block < blocks => {
                self.jobs.push((index, stream.block));
                stream.block += 1;
                if self.jobs.len() == BATCH {
                    self.flush()?;
                }
                Ok(true)
            }
            To::Tcp(_) if stream.at < blocks * self.unit as u64 => self.write(index, blocks).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Writes one block more to a connection. Bytes that it does not take now are offered again
    /// with the next block, and a viewer that is a whole block behind is waited for.
    fn write(&mut self, index: u32, blocks: u64) -> anyhow::Result<()> {
        let Self { from, streams, plan, unit, .. } = self;
        let stream = &mut streams[index as usize];
        let To::Tcp(connection) = &mut stream.to else { return Ok(()) };
        let unit_bytes = *unit as u64;
        if stream.block < blocks && stream.block * unit_bytes - stream.at <= unit_bytes {
            stream.block += 1;
        }
        let (end, place) = (stream.block * unit_bytes, from.place(index));
        while stream.at < end {
            let sent: std::io::Result<usize> = match from {
                Origin::Files(files) if plan.kind == SendMethod::EventsSendfile => {
                    let (mut offset, file) = (stream.at, files[place].file());
                    rustix::fs::sendfile(&*connection, file, Some(&mut offset), (end - stream.at) as usize)
                        .map_err(Into::into)
                }
                Origin::Files(files) => files[place]
                    .read(stream.at / unit_bytes)
                    .and_then(|block| connection.write(&block[(stream.at % unit_bytes) as usize..])),
                Origin::Memory(titles) => connection.write(&titles[place][stream.at as usize..end as usize]),
            };
            match sent {
                Ok(0) => bail!("the file became shorter while it was sent"),
                Ok(taken) => stream.at += taken as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    stream.to = To::Nobody;
                    break;
                }
                Err(error) => return Err(error).context("send a block"),
            }
        }
        Ok(())
    }

    /// Sends the batch, in one call if the kernel takes it all.
    fn flush(&mut self) -> anyhow::Result<()> {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let Self { from, streams, sender, jobs, buffer, unit, segment_bytes, .. } = self;
        for (&(index, block), room) in jobs.iter().zip(buffer.chunks_exact_mut(*unit)) {
            let place = from.place(index);
            let Origin::Files(files) = from else { break };
            files[place].read_into(block, room).context("read a block")?;
        }
        let message = |n: usize| -> anyhow::Result<RawMessage<'_>> {
            let (index, block) = jobs[n];
            let To::Udp(to) = streams[index as usize].to else { bail!("stream {index} has no address") };
            let bytes = match &*from {
                Origin::Files(_) => &buffer[n * *unit..][..*unit],
                Origin::Memory(titles) => &titles[from.place(index)][block as usize * *unit..][..*unit],
            };
            Ok(RawMessage { to, bytes, segment_bytes: *segment_bytes })
        };
        let messages = (0..jobs.len()).map(message).collect::<anyhow::Result<Vec<_>>>()?;
        let mut done = 0;
        while done < messages.len() {
            match sender.send(&messages[done..]) {
                Ok(sent) => done += sent,
                // One viewer's address: the others go on.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => done += 1,
                Err(error) => return Err(error).context("sendmmsg"),
            }
        }
        jobs.clear();
        Ok(())
    }
}

/// Accepts a connection for each stream, which does not block from now on; the streams begin when
/// all viewers have reported that all are there.
pub(super) fn accept_all(plan: &SendPlan) -> anyhow::Result<Vec<TcpStream>> {
    let listener = plan.listener()?;
    say_ready();
    let mut connections = Vec::with_capacity(plan.streams as usize);
    for _ in 0..plan.streams {
        let (connection, _) = listener.accept().context("accept a connection")?;
        connection.set_nodelay(true)?;
        connections.push(connection);
    }
    for connection in &mut connections {
        connection.read_exact(&mut [0]).context("wait for the viewers")?;
        connection.set_nonblocking(true)?;
    }
    Ok(connections)
}
