//! An offload engine opposite this kernel: a TUN device in a namespace of its own lies between them. Needs root.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_netio::tun::GsoTun;
use millrace_offload::toe::{Access, Device, Engine, EngineSettings, Inbound, Stopped, TunDevice};
use rustix::event::{EventfdFlags, eventfd};

use crate::netns::inside;
use crate::tcp_host::{KERNEL_IP, OUR_IP, kernel_at};

/// A running engine at [`OUR_IP`]; the kernel is at [`KERNEL_IP`].
pub struct ToeHost {
    engine: Engine,
    kernel: File,
}

impl ToeHost {
    /// Settings of an engine at [`OUR_IP`].
    pub fn settings() -> EngineSettings {
        EngineSettings::new(&[(OUR_IP.into(), 24)])
    }

    /// Starts the engine.
    ///
    /// # Errors
    /// Without root, `ip` or TUN devices; a setting that cannot be.
    pub fn start(settings: &EngineSettings) -> anyhow::Result<Self> {
        Self::start_with_loss(settings, 0)
    }

    /// Does the same, but loses `lost` of a thousand packets in each direction.
    ///
    /// # Errors
    /// As [`ToeHost::start`].
    pub fn start_with_loss(settings: &EngineSettings, lost: u64) -> anyhow::Result<Self> {
        let (kernel, device) = Self::device(lost)?;
        let engine = Engine::start(settings, device)?;
        Ok(Self { engine, kernel })
    }

    /// The same for an engine that a loop turns: `start` makes it of the device.
    ///
    /// # Errors
    /// As [`ToeHost::start`].
    pub fn start_by<T, E>(
        lost: u64,
        start: impl FnOnce(Box<dyn Device>) -> Result<(Engine, T), E>,
    ) -> anyhow::Result<(Self, T)>
    where
        anyhow::Error: From<E>,
    {
        let (kernel, device) = Self::device(lost)?;
        let (engine, other) = start(device)?;
        Ok((Self { engine, kernel }, other))
    }

    /// The kernel's namespace, and the device that leads there.
    fn device(lost: u64) -> anyhow::Result<(File, Box<dyn Device>)> {
        let (kernel, tun) = kernel_at(KERNEL_IP, GsoTun::open)?;
        let device: Box<dyn Device> = Box::new(TunDevice::new(tun));
        Ok((kernel, if lost > 0 { Box::new(Lossy::new(device, lost)) } else { device }))
    }

    /// Lets other programs have sockets of it.
    ///
    /// # Errors
    /// As [`Engine::serve`].
    pub fn serve(&mut self, path: &Path) -> io::Result<()> {
        self.serve_to(path, Access::default())
    }

    /// Lets other programs, also those that `access` names, have sockets of it.
    ///
    /// # Errors
    /// As [`Engine::serve`].
    pub fn serve_to(&mut self, path: &Path, access: Access) -> io::Result<()> {
        self.engine.serve(path, access)
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs `work` on a thread whose sockets are the kernel's.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn in_kernel<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        inside(&self.kernel, work)
    }

    /// Ends the engine and returns its counters.
    ///
    /// # Errors
    /// Why it had ended before.
    pub fn stop(self) -> io::Result<Stopped> {
        self.engine.stop()
    }
}

/// A device that loses packets, each way alike.
pub struct Lossy {
    device: Box<dyn Device>,
    lost: u64,
    random: SplitMix,
}

impl Lossy {
    /// Wraps `device` so that `lost` of a thousand packets are lost.
    pub fn new(device: Box<dyn Device>, lost: u64) -> Self {
        Self { device, lost, random: SplitMix(lost) }
    }
}

impl Device for Lossy {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let Self { device, lost, random } = self;
        device.receive(&mut |packet| {
            if random.next() % 1000 >= *lost {
                take(packet);
            }
        })
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        if self.random.next() % 1000 < self.lost { Ok(true) } else { self.device.send(packet) }
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        self.device.flush(now)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.device.readable()
    }
}

/// Packets on their way to one end of a wire.
struct WireDirection {
    packets: Mutex<VecDeque<Vec<u8>>>,
    bell: OwnedFd,
}

/// An end of a wire between two engines of this process.
struct WireEnd {
    from: Arc<WireDirection>,
    to: Arc<WireDirection>,
}

/// Packets that a wire holds each way; what does not fit has to wait.
const WIRE_PACKETS: usize = 1024;

/// A wire between two engines of this process: bare IP. Needs no rights.
///
/// # Errors
/// No descriptor is left.
pub fn wire() -> io::Result<[Box<dyn Device>; 2]> {
    let way = || {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        io::Result::Ok(Arc::new(WireDirection { packets: Mutex::default(), bell }))
    };
    let (a, b) = (way()?, way()?);
    let end = |from: &Arc<WireDirection>, to: &Arc<WireDirection>| -> Box<dyn Device> {
        Box::new(WireEnd { from: Arc::clone(from), to: Arc::clone(to) })
    };
    Ok([end(&a, &b), end(&b, &a)])
}

impl Device for WireEnd {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let pop = || self.from.packets.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let packet = pop().or_else(|| {
            // Empty: quiet until there is a packet again, which may have come in between.
            let _ = rustix::io::read(&self.from.bell, &mut [0; 8]);
            pop()
        });
        Ok(packet.inspect(|packet| take(Inbound::new(packet))).is_some())
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        let mut packets = self.to.packets.lock().unwrap_or_else(PoisonError::into_inner);
        if packets.len() >= WIRE_PACKETS {
            return Ok(false);
        }
        packets.push_back(packet.to_vec());
        // A full counter is readable already.
        let _ = rustix::io::write(&self.to.bell, &1_u64.to_ne_bytes());
        Ok(true)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.from.bell.as_fd())
    }
}
